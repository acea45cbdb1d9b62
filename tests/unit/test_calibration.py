"""How far estimates are trusted: raw at first, then by what was seen."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_service.engine.calibration import (
    NUM_BINS,
    PoolCalibration,
    SequenceCalibration,
    bin_of,
)
from verify_service.engine.draft_trie import Observation

HALF = math.log(0.5)


def _seen(log_prob: float, hits: int, misses: int) -> list[Observation]:
    seen = [Observation(log_prob, hit=True)] * hits + [Observation(log_prob, hit=False)] * misses
    random.Random(0).shuffle(seen)  # noqa: S311 - an order, not a secret
    return seen


@given(st.floats(max_value=0.0, allow_nan=False), st.floats(max_value=0.0, allow_nan=False))
def test_bins_are_ordered_and_complete(one: float, other: float) -> None:
    low, high = sorted([one, other])

    assert 0 <= bin_of(low) <= bin_of(high) < NUM_BINS


def test_both_ends_have_a_bin() -> None:
    assert bin_of(-math.inf) == 0
    assert bin_of(0.0) == NUM_BINS - 1


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.9, 1.0])
def test_without_evidence_the_raw_estimate_counts(share: float) -> None:
    sequence = SequenceCalibration(PoolCalibration())

    assert sequence.rate(math.log(share)) == pytest.approx(share)


def test_estimate_that_means_nothing_gets_no_trust() -> None:
    sequence = SequenceCalibration(PoolCalibration())

    sequence.record(_seen(math.log(0.99), hits=0, misses=200))

    assert sequence.rate(math.log(0.99)) < 0.1


def test_modest_estimate_that_always_hits_gains_trust() -> None:
    sequence = SequenceCalibration(PoolCalibration())

    sequence.record(_seen(HALF, hits=200, misses=0))

    assert sequence.rate(HALF) > 0.9


def test_rate_settles_at_what_was_seen() -> None:
    sequence = SequenceCalibration(PoolCalibration())

    sequence.record(_seen(HALF, hits=700, misses=300))

    assert sequence.rate(HALF) == pytest.approx(0.7, abs=0.12)


def test_other_bins_keep_their_estimates() -> None:
    sequence = SequenceCalibration(PoolCalibration())

    sequence.record(_seen(HALF, hits=100, misses=0))

    assert sequence.rate(math.log(0.1)) == pytest.approx(0.1)


def test_new_sequence_starts_from_what_its_pool_learned() -> None:
    pool = PoolCalibration()
    SequenceCalibration(pool).record(_seen(HALF, hits=0, misses=300))

    assert SequenceCalibration(pool).rate(HALF) < 0.1
    assert SequenceCalibration(PoolCalibration()).rate(HALF) == pytest.approx(0.5)


def test_sequence_outgrows_its_pool() -> None:
    pool = PoolCalibration()
    SequenceCalibration(pool).record(_seen(HALF, hits=0, misses=300))
    lucky = SequenceCalibration(pool)

    lucky.record(_seen(HALF, hits=60, misses=0))

    assert lucky.rate(HALF) > 0.7


def test_change_of_fortune_is_noticed() -> None:
    """B098: a drafter that turns bad loses trust within some dozens of nodes."""
    sequence = SequenceCalibration(PoolCalibration())
    sequence.record(_seen(HALF, hits=500, misses=0))

    sequence.record(_seen(HALF, hits=0, misses=80))

    assert sequence.rate(HALF) < 0.3


@given(
    st.lists(
        st.builds(Observation, st.floats(max_value=0.0, allow_nan=False), st.booleans()),
        max_size=60,
    ),
    st.floats(max_value=0.0, allow_nan=False),
)
def test_rate_is_always_a_probability(observations: list[Observation], log_prob: float) -> None:
    pool = PoolCalibration()
    sequence = SequenceCalibration(pool)

    sequence.record(observations)

    assert 0.0 <= sequence.rate(log_prob) <= 1.0
    assert 0.0 <= pool.squared_error <= 1.0


def test_honest_estimates_have_no_calibration_error_and_boasts_have() -> None:
    """A coin that is told to be one is honest, however often it surprises."""
    honest, boasting = PoolCalibration(), PoolCalibration()
    for index in range(400):
        honest.note(0.5, hit=index % 2 == 0)
        boasting.note(0.9, hit=index % 2 == 0)

    assert honest.calibration_error == pytest.approx(0.0, abs=0.01)
    assert boasting.calibration_error == pytest.approx(0.4, abs=0.01)
    assert PoolCalibration().calibration_error == 0.0


def test_calibration_error_falls_as_a_boaster_is_learned() -> None:
    pool = PoolCalibration()
    sequence = SequenceCalibration(pool)
    sequence.record(_seen(math.log(0.95), hits=10, misses=30))
    early = pool.calibration_error

    sequence.record(_seen(math.log(0.95), hits=250, misses=750))

    assert pool.calibration_error < early / 2
