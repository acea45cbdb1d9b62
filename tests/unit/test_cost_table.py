"""What a step costs: learned, interpolated, never falling with more rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_service.engine.cost_table import (
    CLAMP,
    CONTEXT_BUCKET_EDGES,
    EXPLORED_ROWS,
    MIN_WEIGHT,
    READ_EVERY,
    SETTLED_COUNT,
    TRUST_HALF_LIFE,
    CostTable,
)
from verify_service.engine.isotonic import isotonic

SHORT, LONG = 10, CONTEXT_BUCKET_EDGES[-1] + 1

steps = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 40_000), st.floats(1e-5, 10.0)), max_size=40
)


@given(steps=steps, context=st.integers(0, 40_000))
def test_more_rows_never_cost_less(steps: list[tuple[int, int, float]], context: int) -> None:
    table = CostTable(16)
    for num_rows, tokens, seconds in steps:
        table.record(num_rows, tokens, seconds)

    curve = table.curve(context).tolist()

    assert len(curve) == 17
    assert curve == sorted(curve)
    assert curve[0] == curve[1] > 0


def test_rows_in_between_are_interpolated() -> None:
    table = CostTable(8)
    table.record(2, SHORT, 1.0)
    table.record(6, SHORT, 3.0)

    assert table.curve(SHORT)[1:7] == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.5, 3.0])


def test_rows_beyond_the_largest_cost_their_full_share() -> None:
    table = CostTable(8)
    table.record(4, SHORT, 1.0)

    assert table.curve(SHORT)[4:] == pytest.approx([1.0, 1.25, 1.5, 1.75, 2.0])
    assert table.seconds(999, SHORT) == pytest.approx(2.0)


def test_first_steps_average_evenly_and_later_ones_slowly() -> None:
    table = CostTable(4)
    for seconds in (1.0, 1.2, 1.4):
        table.record(1, SHORT, seconds)
    assert table.seconds(1, SHORT) == pytest.approx(1.2)

    for _ in range(100):
        table.record(1, SHORT, 1.2)
    table.record(1, SHORT, 1.0)

    assert table.seconds(1, SHORT) == pytest.approx(1.2 - MIN_WEIGHT * 0.2)


def test_outlier_is_clamped() -> None:
    """A stolen core must not switch drafting off."""
    table = CostTable(4)
    for _ in range(100):
        table.record(1, SHORT, 1.0)

    table.record(1, SHORT, 1000.0)

    assert table.seconds(1, SHORT) == pytest.approx(1 + MIN_WEIGHT * (CLAMP - 1))


def test_lasting_change_is_learned_in_spite_of_the_clamp() -> None:
    table = CostTable(4)
    table.record(1, SHORT, 1.0)

    for _ in range(300):
        table.record(1, SHORT, 8.0)

    assert table.seconds(1, SHORT) == pytest.approx(8.0, rel=0.05)


def test_unseen_context_borrows_the_nearest_shape() -> None:
    table = CostTable(4)
    for rows, seconds in ((1, 1.0), (4, 2.0)):
        table.record(rows, SHORT, seconds)

    assert table.curve(LONG).tolist() == table.curve(SHORT).tolist()


def test_borrowed_shape_is_scaled_by_what_both_have_seen() -> None:
    table = CostTable(4)
    for rows, seconds in ((1, 1.0), (4, 2.0)):
        table.record(rows, SHORT, seconds)
    table.record(1, LONG, 3.0)

    assert table.seconds(1, LONG) == pytest.approx(3.0)
    assert table.seconds(4, LONG) == pytest.approx(6.0)
    assert table.seconds(4, SHORT) == pytest.approx(2.0)


def test_borrowed_shape_follows_its_owner() -> None:
    table = CostTable(4)
    table.record(1, SHORT, 1.0)
    before = table.seconds(1, LONG)

    for _ in range(200):
        table.record(1, SHORT, 2.0)

    assert before == pytest.approx(1.0)
    assert table.seconds(1, LONG) == pytest.approx(table.seconds(1, SHORT))


def test_empty_table_favours_few_rows() -> None:
    curve = CostTable(4).curve(SHORT)

    assert all(more > less for less, more in itertools.pairwise(curve[1:]))


def test_one_dear_measurement_does_not_raise_all_larger_ones_for_ever() -> None:
    """What was measured often and lately outweighs what was measured once, under a disturbance."""
    table = CostTable(32)
    table.record(8, SHORT, 5.0)

    for _ in range(200):
        table.record(6, SHORT, 1.0)
        table.record(12, SHORT, 1.2)

    assert table.seconds(8, SHORT) < 1.5
    assert table.seconds(12, SHORT) < 1.5
    assert table.seconds(6, SHORT) == pytest.approx(1.0, rel=0.01)


def test_an_old_measurement_counts_ever_less() -> None:
    """The same two row counts: the newer one is believed."""
    table = CostTable(8)
    for _ in range(50):
        table.record(4, SHORT, 3.0)
    table.record(6, SHORT, 1.0)
    before = table.seconds(6, SHORT)

    for _ in range(2 * TRUST_HALF_LIFE):
        table.record(6, SHORT, 1.0)

    assert before > 2.5
    assert table.seconds(4, SHORT) == table.seconds(6, SHORT) < 1.6


def test_seeds_are_the_least_of_what_was_measured() -> None:
    """Disturbances at the start only ever add to a cost."""
    table = CostTable(8)
    with table.seeding():
        for seconds in (2.0, 1.0, 9.0):
            table.record(1, SHORT, seconds)

    table.record(1, SHORT, 1.5)

    assert table.seconds(1, SHORT) == pytest.approx(1.25)


@given(
    points=st.lists(
        st.tuples(st.floats(0.001, 10.0), st.floats(0.01, 12.0)), min_size=1, max_size=12
    )
)
def test_isotonic_fit_is_the_nearest_curve_that_never_falls(
    points: list[tuple[float, float]],
) -> None:
    values, weights = (np.array(column) for column in zip(*points, strict=True))

    fit = isotonic(values, weights)

    # The largest of the least weighted means of all stretches around a point is the optimum.
    def mean(first: int, last: int) -> float:
        part = slice(first, last + 1)
        return float(np.average(values[part], weights=weights[part]))

    size = len(points)
    for index in range(size):
        optimum = max(min(mean(i, j) for j in range(index, size)) for i in range(index + 1))
        assert fit[index] == pytest.approx(optimum)


def test_forgetting_starts_afresh() -> None:
    table = CostTable(4)
    table.record(1, SHORT, 5.0)
    table.curve(SHORT)

    table.forget()
    table.record(1, SHORT, 1.0)

    assert table.seconds(1, SHORT) == pytest.approx(1.0)


def test_a_step_may_try_a_little_more_than_was_seen() -> None:
    """Else a verifier that never saw many rows would never learn that they are cheap."""
    table = CostTable(200)
    for rows in (1, 10, 20):
        table.record(rows, SHORT, 1.0)

    curve = table.curve(SHORT)

    assert curve[20 + EXPLORED_ROWS] == pytest.approx(1.0)
    assert curve[200] == pytest.approx(200 / (20 + EXPLORED_ROWS))


def test_context_without_rows_in_common_still_borrows() -> None:
    table = CostTable(100)
    for rows in (1, 20):
        table.record(rows, SHORT, 1.0)
    table.record(60, LONG, 2.0)

    assert table.seconds(20, LONG) == pytest.approx(1.0)
    assert table.seconds(40, LONG) == pytest.approx(1.5)


def test_borrowed_shape_is_scaled_by_rows_between_those_seen() -> None:
    table = CostTable(40)
    table.record(1, SHORT, 1.0)
    table.record(21, SHORT, 3.0)
    table.record(11, LONG, 4.0)

    assert table.seconds(21, LONG) == pytest.approx(6.0)
    assert table.seconds(1, LONG) == pytest.approx(2.0)


def test_curve_follows_settled_costs_within_some_steps() -> None:
    table = CostTable(4)
    for _ in range(3 * SETTLED_COUNT):
        table.record(1, SHORT, 1.0)
    table.curve(SHORT)

    for _ in range(READ_EVERY):
        table.record(1, SHORT, 1.4)

    assert table.seconds(1, SHORT) > 1.1


def test_rows_that_were_not_measured_for_long_count_at_once() -> None:
    """They weigh little until then; the measurement that makes them weigh more is in the curve."""
    table = CostTable(8)
    for _ in range(3 * SETTLED_COUNT):
        table.record(1, SHORT, 2.0)
        table.record(4, SHORT, 1.0)
    for _ in range(READ_EVERY * (2 * TRUST_HALF_LIFE // READ_EVERY)):
        table.record(4, SHORT, 1.0)
    before = table.seconds(4, SHORT)

    table.record(1, SHORT, 2.0)

    assert table.seconds(4, SHORT) > 1.1 * before


def test_the_least_of_what_is_seeded_shows_at_once() -> None:
    table = CostTable(8)
    for _ in range(3 * SETTLED_COUNT):
        table.record(2, SHORT, 7.0)
    table.curve(SHORT)

    with table.seeding():
        table.record(2, SHORT, 1.0)

    assert table.seconds(2, SHORT) == 1.0
