"""On a GPU: the compiled kernel against its reference, over random trees and real models' sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.kernel_case import BLOCK, SHAPES, TRAITS, Case
from verify_service.targets.row_buckets import RowBuckets
from verify_service.targets.tree_kernel import KernelTraits, attend
from verify_service.targets.tree_kernel_check import MAX_DIFFERENCE, kernel_fault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda", 0)
MODELS = {
    "llama 8b": KernelTraits(32, 8, 128, 16, 0.0884),
    "qwen 0.5b": KernelTraits(14, 2, 64, 16, 0.125),
    "gemma 2b": KernelTraits(8, 4, 256, 16, 0.0625, softcap=50.0, window=4096),
    "gemma 270m": KernelTraits(4, 1, 256, 16, 0.0625, window=512),
    "mistral 7b": KernelTraits(32, 8, 128, 16, 0.0884, window=4096),
    "llama 405b": KernelTraits(128, 8, 128, 16, 0.0884),
    "many heads": KernelTraits(32, 32, 64, 16, 0.125),
}


@pytest.mark.parametrize("dtype", list(MAX_DIFFERENCE))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), shapes=SHAPES, traits=TRAITS)
def test_random_trees_are_attended_as_by_the_reference(
    dtype: torch.dtype, seed: int, shapes: list[tuple[int, int]], traits: KernelTraits
) -> None:
    """B007: the property of the interpreter's run, on the device."""
    case = Case(seed, shapes, traits, dtype)

    torch.testing.assert_close(
        case.kernel(CUDA), case.reference(), rtol=0, atol=MAX_DIFFERENCE[dtype]
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", list(MODELS))
def test_heads_and_windows_of_real_models(name: str, dtype: torch.dtype) -> None:
    traits = MODELS[name]
    buckets = RowBuckets(512, 256, traits.num_kv_heads)

    assert traits.is_served
    assert kernel_fault(attend, [traits], buckets, dtype, CUDA) is None


def test_padding_rows_are_left_alone() -> None:
    """B012."""
    case = Case(1, [(5, 5)], KernelTraits(4, 2, 16, BLOCK, 0.25), torch.bfloat16)

    assert not case.kernel(CUDA)[5:].any()
