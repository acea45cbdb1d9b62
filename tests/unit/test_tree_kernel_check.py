"""The kernel is tried before it serves: one that fails or differs costs speed, never a token."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import torch

from tests.doubles.recorded_graphs import RecordingGraphs
from tests.doubles.target_spans import BLOCK_SIZE, SpanSource
from tests.doubles.tiny_models import CONFIGS, save_tiny_model
from verify_service.targets.model_graphs import Accelerator
from verify_service.targets.packed_attention import Kernel, reference_kernel
from verify_service.targets.row_buckets import RowBuckets
from verify_service.targets.target import FlatBatch
from verify_service.targets.torch_model import TorchTarget
from verify_service.targets.tree_kernel import KernelInputs, KernelTraits, Partials
from verify_service.targets.tree_kernel_check import kernel_fault

CPU = torch.device("cpu")
BUCKETS = RowBuckets(64, 4, 2, num_processors=8)
TRAITS = (KernelTraits(4, 2, 16, 16, 0.25), KernelTraits(4, 2, 16, 16, 0.25, 5.0, window=7))


def fault_of(kernel: Kernel, dtype: torch.dtype = torch.float32) -> str | None:
    return kernel_fault(kernel, TRAITS, BUCKETS, dtype, CPU)


def without_windows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    inputs: KernelInputs,
    traits: KernelTraits,
    partials: Partials,
    out: torch.Tensor,
) -> None:
    """A kernel that sees all of the context in every layer."""
    blind = KernelTraits(
        traits.num_heads, traits.num_kv_heads, traits.head_dim, traits.block_size, traits.scaling,
        traits.softcap,
    )  # fmt: skip
    reference_kernel(queries, keys, values, inputs, blind, partials, out)


def without_ancestors(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    inputs: KernelInputs,
    traits: KernelTraits,
    partials: Partials,
    out: torch.Tensor,
) -> None:
    """A kernel that takes trees for chains."""
    inputs.ancestors.fill_(-1)
    reference_kernel(queries, keys, values, inputs, traits, partials, out)


def broken(*_: object) -> None:
    """A kernel that needs more of the chip than there is."""
    raise ValueError("out of resource: shared memory, Required: 262144\nand a long story")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_kernel_that_does_what_the_reference_does_has_no_fault(dtype: torch.dtype) -> None:
    assert fault_of(reference_kernel, dtype) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [without_windows, without_ancestors])
def test_a_wrong_mask_shows(kernel: Kernel, dtype: torch.dtype) -> None:
    fault = fault_of(kernel, dtype)

    assert fault is not None
    assert fault.startswith("it computes something else with 4 heads over 2 of 16")


def test_a_kernel_that_cannot_be_built_is_a_fault_in_one_line() -> None:
    assert fault_of(broken) == "ValueError: out of resource: shared memory, Required: 262144"


def test_a_model_is_served_without_a_kernel_that_fails(tmp_path: Path) -> None:
    save_tiny_model(CONFIGS["qwen3"], tmp_path)
    graphs = RecordingGraphs()
    logits: list[torch.Tensor] = []
    for kernel in (reference_kernel, without_ancestors):
        accelerator = Accelerator(graphs, kernel, num_processors=8, max_rows=64, is_lazy=True)
        target = TorchTarget.load(
            tmp_path, weights="float32", num_threads=1, accelerator=accelerator
        )
        with structlog.testing.capture_logs() as logs:
            target.allocate_kv(16, BLOCK_SIZE)
        source = SpanSource((3, 1, 2))
        target.forward(FlatBatch((source.chain([5, 6, 7]),)))
        logits.append(target.forward(FlatBatch((source.tree([8, 9], (-1, -1)),))).clone())

    torch.testing.assert_close(logits[1], logits[0], atol=2e-4, rtol=0)
    assert [entry["event"] for entry in logs] == ["tree_kernel_absent"]
    assert len(graphs.graphs) == 2


def test_tiles_that_outgrow_a_processor_are_not_served() -> None:
    """71 query heads over one key head: a tile of 2048 queries."""
    assert not KernelTraits(71, 1, 64, 16, 0.1).is_served
    assert KernelTraits(32, 8, 128, 16, 0.1).is_served
