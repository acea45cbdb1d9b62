"""When the torch target runs in graphs, and what it does where they cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import torch

from tests.doubles.recorded_graphs import RecordedGraph, RecordingGraphs
from tests.doubles.target_spans import BLOCK_SIZE, SpanSource
from tests.doubles.tiny_models import CONFIGS, save_tiny_model
from verify_service.targets import model_graphs
from verify_service.targets.attention_step import LayerTraits, ScoreArithmetic
from verify_service.targets.captured_forward import GraphMaker
from verify_service.targets.kv_cache import LayerShape
from verify_service.targets.model_graphs import Accelerator, accelerator_of
from verify_service.targets.packed_attention import reference_kernel
from verify_service.targets.target import FlatBatch
from verify_service.targets.torch_model import TorchTarget

CUDA = torch.device("cuda", 0)
LAYER = LayerTraits(0, 4, LayerShape(2, 64), ScoreArithmetic(0.125, None), None)


class RefusingGraphs:
    """Stands for a model that waits for the device while it is captured."""

    def capture(self, run: Callable[[], torch.Tensor]) -> RecordedGraph:
        """Fail as torch does."""
        raise RuntimeError("operation not permitted when stream is capturing")


def target_with(graphs: GraphMaker, folder: Path) -> TorchTarget:
    save_tiny_model(CONFIGS["qwen3"], folder)
    accelerator = Accelerator(graphs, reference_kernel, num_processors=8, max_rows=4)
    target = TorchTarget.load(folder, weights="float32", num_threads=1, accelerator=accelerator)
    target.allocate_kv(16, BLOCK_SIZE)
    return target


def logits_of(target: TorchTarget) -> torch.Tensor:
    source = SpanSource((3, 1, 2))
    target.forward(FlatBatch((source.chain([5, 6, 7]),)))
    return target.forward(FlatBatch((source.tree([8, 9], (-1, -1)),))).clone()


def test_every_size_is_captured_before_the_first_step(tmp_path: Path) -> None:
    graphs = RecordingGraphs()
    target = target_with(graphs, tmp_path)
    num_captured = len(graphs.graphs)

    logits_of(target)

    assert num_captured == len(graphs.graphs) > 2


def test_a_model_that_cannot_be_captured_is_served_all_the_same(tmp_path: Path) -> None:
    """And whoever runs it is told."""
    folders = [tmp_path / name for name in ("captured", "refused")]
    captured = logits_of(target_with(RecordingGraphs(), folders[0]))

    with structlog.testing.capture_logs() as logs:
        refused = target_with(RefusingGraphs(), folders[1])

    torch.testing.assert_close(logits_of(refused), captured)
    assert [entry["event"] for entry in logs] == ["graph_capture_failed"]


def test_a_cpu_has_no_graphs() -> None:
    assert accelerator_of(torch.device("cpu"), [LAYER]) is None


@pytest.mark.parametrize(
    ("kernel", "head_dim", "cause"),
    [(None, 64, "triton is not installed"), (reference_kernel, 80, "heads of this size")],
)
def test_without_a_kernel_for_the_model_steps_run_eagerly_and_say_why(
    monkeypatch: pytest.MonkeyPatch, kernel: object, head_dim: int, cause: str
) -> None:
    monkeypatch.setattr(model_graphs, "triton_kernel", lambda device: kernel)
    layer = replace(LAYER, shape=LayerShape(2, head_dim))

    with structlog.testing.capture_logs() as logs:
        found = accelerator_of(CUDA, [layer])

    assert found is None
    assert [entry["event"] for entry in logs] == ["tree_kernel_absent"]
    assert cause in logs[0]["cause"]
