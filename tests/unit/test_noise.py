"""The shared noise: numpy and torch agree hash for hash, and the bound holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import noise
from verify_service.engine import noise as tensor_noise

EXTREME_SEEDS = [0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
EXTREME_POSITIONS = [0, 1, 2**31, 2**32 - 1]
EXTREME_IDS = [0, 1, 2, 262_143, 2**31 - 1, 2**31, 2**32 - 1]


def _hashes(seed: int, position: int, token_ids: list[int]) -> tuple[list[int], list[int]]:
    plain = noise.token_hashes(seed, position, np.array(token_ids, dtype=np.int64))
    tensors = tensor_noise.token_hashes(seed, position, torch.tensor(token_ids, dtype=torch.int64))
    return plain.tolist(), [value & noise.MASK64 for value in tensors.tolist()]


def _values(seed: int, position: int, token_ids: list[int]) -> tuple[list[float], list[float]]:
    plain = noise.gumbel_noise(seed, position, np.array(token_ids, dtype=np.int64))
    tensors = tensor_noise.gumbel_noise(seed, position, torch.tensor(token_ids, dtype=torch.int64))
    return plain.tolist(), tensors.tolist()


@pytest.mark.parametrize("seed", EXTREME_SEEDS)
@pytest.mark.parametrize("position", EXTREME_POSITIONS)
def test_both_versions_agree_at_the_extremes(seed: int, position: int) -> None:
    plain, tensors = _hashes(seed, position, EXTREME_IDS)
    plain_values, tensor_values = _values(seed, position, EXTREME_IDS)

    assert plain == tensors
    assert plain_values == pytest.approx(tensor_values, rel=0, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    token_ids=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
)
def test_both_versions_agree(seed: int, position: int, token_ids: list[int]) -> None:
    plain, tensors = _hashes(seed, position, token_ids)
    plain_values, tensor_values = _values(seed, position, token_ids)

    assert plain == tensors
    assert plain_values == pytest.approx(tensor_values, rel=0, abs=1e-12)


def test_token_hash_is_the_splitmix_finalizer_of_key_and_id() -> None:
    """The definition in plain integers, so that other languages can follow it."""
    key = noise.stream_key(2**64 - 1, 77)
    expected = [noise.mix64(key + token_id * noise.GOLDEN) for token_id in EXTREME_IDS]

    plain, _ = _hashes(2**64 - 1, 77, EXTREME_IDS)

    assert plain == expected


@given(
    seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), token_id=st.integers(0, 2**32)
)
def test_noise_of_one_token_is_that_of_many(seed: int, position: int, token_id: int) -> None:
    (plain,), _ = _values(seed, position, [token_id])

    assert noise.token_noise(seed, position, token_id) == pytest.approx(plain, rel=0, abs=1e-12)


def test_known_values_never_change() -> None:
    """A drafter of an older release still ranks by the verifier's noise."""
    assert noise.mix64(1) == 0x5692161D100B05E5
    assert noise.stream_key(42, 7) == 0xFD9595E7D3706A4E
    assert noise.token_hashes(42, 7, np.arange(2)).tolist() == [
        1246069217967162502,
        9522258638401500794,
    ]


@pytest.mark.parametrize("bits", [0, 2**noise.UNIFORM_BITS - 1], ids=["least", "largest"])
def test_noise_is_finite_and_bounded_at_both_ends(bits: int) -> None:
    uniform = (np.float64(bits) + 0.5) * 2.0**-noise.UNIFORM_BITS
    value = float(-np.log(-np.log(uniform)))

    assert np.isfinite(value)
    assert value <= noise.MAX_NOISE


def test_bound_holds_over_many_draws() -> None:
    token_ids = np.arange(200_000)
    largest = max(float(noise.gumbel_noise(9, p, token_ids).max()) for p in range(20))

    assert 10 < largest <= noise.MAX_NOISE


def test_position_zero_and_seed_zero_are_no_special_case() -> None:
    ids = np.arange(64)
    streams = {
        tuple(noise.token_hashes(seed, position, ids).tolist())
        for seed in range(16)
        for position in range(16)
    }

    assert len(streams) == 256


def test_derived_seeds_are_distinct_and_the_first_is_the_seed_itself() -> None:
    seeds = [0, 1, 2, 2**63, 2**64 - 1]
    derived = [noise.derive_seed(seed, index) for seed in seeds for index in range(200)]

    assert [noise.derive_seed(seed, 0) for seed in seeds] == seeds
    assert len(set(derived)) == len(derived)
    assert all(0 <= seed < 2**64 for seed in derived)
