"""On a GPU: the whole step engine says what it says on the CPU, drafted or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.doubles.drafted_texts import CONFIG, REQUESTS, oracle, texts_of
from tests.doubles.engine_harness import Harness
from tests.doubles.tiny_models import CONFIGS, save_tiny_model
from verify_service.engine.step_engine import StepEngine
from verify_service.targets.torch_model import TorchTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_text_is_that_of_the_cpu_drafted_or_not(name: str, tmp_path: Path) -> None:
    """B012, B049: greedy and sampled, penalties and log-probabilities; in float32 nothing ties."""
    save_tiny_model(CONFIGS[name], tmp_path)
    plain = texts_of(TorchTarget.load(tmp_path, weights="float32"))

    undrafted = texts_of(TorchTarget.load(tmp_path, device="cuda", weights="float32"))
    drafted = texts_of(TorchTarget.load(tmp_path, device="cuda", weights="float32"), oracle(plain))

    assert undrafted == plain
    assert drafted == plain


def test_steps_leave_the_host_time_beside_them(tmp_path: Path) -> None:
    """What runs between launch and result runs while the device computes."""
    save_tiny_model(CONFIGS["qwen3"], tmp_path)
    target = TorchTarget.load(tmp_path, device="cuda", weights="bfloat16")
    engine = StepEngine(target, CONFIG)
    calls: list[bool] = []
    engine.beside = lambda: calls.append(engine.runs_apart)

    harness = Harness(engine)
    for request in REQUESTS:
        harness.submit(request)
    harness.run()

    assert calls
    assert all(calls)
