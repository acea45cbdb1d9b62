"""When drafting pays: the policy as a pure state machine."""

from __future__ import annotations

import pytest

from gateway.drafting_policy import (
    Gate,
    Observation,
    PolicyLimits,
    advance,
    decide,
)
from gateway.generation import (
    DraftFallback,
    DraftingChoice,
    DraftingMode,
    DraftingWish,
    DraftPool,
    PriorityClass,
)

LIMITS = PolicyLimits(max_running_to_draft=10, min_dwell_seconds=1.0, probe_interval_seconds=10.0)
POOL = DraftPool("ngram", available=True)
OPEN = Gate()
CLOSED = Gate(is_open=False, cause=DraftFallback.LOAD, since=0.0, next_probe=10.0)


def run(*seen: Observation, gate: Gate = OPEN, limits: PolicyLimits = LIMITS) -> Gate:
    """Return the gate after some observations."""
    for observation in seen:
        gate = advance(gate, observation, limits)
    return gate


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (Observation(0, num_running=10), DraftFallback.UNSPECIFIED),
        (Observation(0, num_running=11), DraftFallback.LOAD),
        (Observation(0, estimated_gain=0.96), DraftFallback.NO_GAIN),
        (Observation(0, estimated_gain=0.98), DraftFallback.UNSPECIFIED),
        (Observation(0, acceptance_length=1.29), DraftFallback.NO_GAIN),
        (Observation(0, acceptance_length=1.3), DraftFallback.UNSPECIFIED),
    ],
)
def test_the_gate_closes_when_drafting_does_not_pay(
    seen: Observation, cause: DraftFallback
) -> None:
    gate = run(seen)

    assert gate.cause is cause
    assert gate.is_open is (cause is DraftFallback.UNSPECIFIED)


def test_a_closed_gate_opens_only_well_below_the_ceiling() -> None:
    still_closed = run(Observation(0, 11), Observation(5, 9))
    reopened = run(Observation(0, 11), Observation(5, 8))

    assert not still_closed.is_open
    assert reopened.is_open


def test_the_gate_does_not_turn_twice_within_the_dwell() -> None:
    early = run(Observation(0, 11), Observation(0.5, 1))
    later = run(Observation(0, 11), Observation(0.5, 1), Observation(1.0, 1))

    assert not early.is_open
    assert later.is_open


def test_load_that_swings_around_the_ceiling_turns_the_gate_once() -> None:
    gate, turns = OPEN, 0
    for tick in range(100):
        after = advance(gate, Observation(tick * 0.1, 10 + tick % 2), LIMITS)
        turns += after.is_open is not gate.is_open
        gate = after

    assert turns == 1


def test_a_gain_of_exactly_one_means_unknown_and_reopens_after_the_probe_interval() -> None:
    closed = run(Observation(0, estimated_gain=0.5))

    assert not run(Observation(5, estimated_gain=1.0), gate=closed).is_open
    assert run(Observation(10, estimated_gain=1.0), gate=closed).is_open
    assert run(Observation(5, estimated_gain=1.05), gate=closed).is_open


def test_probes_come_due_only_while_drafting_does_not_pay() -> None:
    no_gain = run(Observation(0, acceptance_length=1.0))

    assert not no_gain.probe_is_due(9.9)
    assert no_gain.probe_is_due(10.0)
    assert not no_gain.after_probe(10.0, LIMITS).probe_is_due(19.9)
    assert not CLOSED.probe_is_due(1e9)


def choice_for(
    mode: DraftingMode = DraftingMode.AUTO,
    priority: PriorityClass = PriorityClass.STANDARD,
    pool: DraftPool | None = POOL,
    gate: Gate = OPEN,
    *,
    is_probe: bool = False,
) -> DraftingChoice:
    """Return the decision for a request."""
    return decide(DraftingWish(mode), priority, pool, gate, is_probe=is_probe)


def test_an_open_gate_and_a_pool_give_drafts() -> None:
    assert choice_for() == DraftingChoice("ngram")


def test_off_is_obeyed() -> None:
    choice = choice_for(DraftingMode.OFF)

    assert choice == DraftingChoice(fallback=DraftFallback.REQUESTED)


def test_auto_obeys_a_closed_gate_and_on_does_not() -> None:
    assert choice_for(gate=CLOSED) == DraftingChoice(fallback=DraftFallback.LOAD)
    assert choice_for(DraftingMode.ON, gate=CLOSED).pool == "ngram"


def test_a_probe_drafts_through_a_closed_gate() -> None:
    assert choice_for(gate=CLOSED, is_probe=True).pool == "ngram"


def test_batch_priority_drafts_only_when_asked() -> None:
    quiet = choice_for(priority=PriorityClass.BATCH)
    asked = choice_for(DraftingMode.ON, PriorityClass.BATCH)

    assert quiet == DraftingChoice(fallback=DraftFallback.PRIORITY)
    assert asked.pool == "ngram"


def test_without_a_pool_the_cause_says_so() -> None:
    choice = choice_for(DraftingMode.ON, pool=None)

    assert choice == DraftingChoice(fallback=DraftFallback.NO_POOL)


def test_a_pool_out_of_reach_stays_named_so_that_drafts_flow_once_it_is_back() -> None:
    """B073."""
    away = DraftPool("ngram", available=False, cause=DraftFallback.UNREACHABLE)

    assert choice_for(pool=away) == DraftingChoice("ngram", 0, DraftFallback.UNREACHABLE)


def test_a_pool_that_does_not_match_is_not_named() -> None:
    wrong = DraftPool("ngram", available=False, cause=DraftFallback.MISMATCH)

    assert choice_for(pool=wrong) == DraftingChoice(fallback=DraftFallback.MISMATCH)
