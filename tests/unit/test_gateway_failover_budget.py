"""How many failovers a gateway allows itself over all requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.failover_budget import FailoverBudget


class Clock:
    """A clock that a test turns."""

    now = 50.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def test_a_burst_is_allowed_and_then_a_rate() -> None:
    clock = Clock()
    budget = FailoverBudget(3, 2.0, clock)

    at_once = [budget.spend() for _ in range(4)]
    clock.now += 0.5
    later = [budget.spend(), budget.spend()]

    assert at_once == [0, 0, 0, pytest.approx(0.5)]
    assert later == [0, pytest.approx(0.5)]


def test_a_refusal_costs_nothing() -> None:
    clock = Clock()
    budget = FailoverBudget(1, 1.0, clock)
    budget.spend()

    waits = [budget.spend() for _ in range(10)]

    assert waits == [pytest.approx(1.0)] * 10


def test_new_limits_start_afresh_and_the_same_ones_change_nothing() -> None:
    budget = FailoverBudget(1, 0.001, Clock())
    budget.spend()
    budget.resize(1, 0.001)
    kept = budget.spend()
    budget.resize(2, 0.001)

    assert kept > 0
    assert budget.spend() == 0


@given(
    pauses=st.lists(st.floats(0, 0.2), min_size=1, max_size=200),
    burst=st.integers(1, 20),
    rate=st.floats(0.5, 50),
)
def test_never_more_than_burst_and_rate_allow(pauses: list[float], burst: int, rate: float) -> None:
    clock = Clock()
    budget = FailoverBudget(burst, rate, clock)
    allowed = 0
    for pause in pauses:
        clock.now += pause
        allowed += budget.spend() == 0

    assert allowed <= burst + rate * (clock.now - 50.0) + 1e-6
