"""Where the torch target may run and how it holds its weights."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import ConfigurationError
from verify_service.targets.device_choice import (
    Weights,
    dtype_for,
    packing_for,
    require_memory,
    require_one_rank,
)

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        ("auto", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("float32", torch.float32),
    ],
)
def test_an_accelerator_holds_what_was_asked_for(weights: Weights, dtype: torch.dtype) -> None:
    packing = packing_for(CUDA, weights)

    assert packing is None
    assert dtype_for(packing, weights) == dtype


def test_packed_weights_are_refused_on_an_accelerator() -> None:
    with pytest.raises(ConfigurationError, match="setting weights: packed-fp16 needs a CPU"):
        packing_for(CUDA, "packed-fp16")


def test_a_rank_among_several_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match=r"WORLD_SIZE is 2, .* no tensor"):
        require_one_rank({"WORLD_SIZE": "2"})


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "many"}])
def test_a_single_rank_starts(environment: dict[str, str]) -> None:
    require_one_rank(environment)


def test_a_model_that_one_device_cannot_hold_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigurationError, match=r"take 141\.0 GB and cuda:0 has 80\.0 GB free"):
        require_memory(141 * 10**9, 80 * 10**9, CUDA)


def test_a_model_that_fits_starts() -> None:
    require_memory(16 * 10**9, 80 * 10**9, CUDA)
