"""Which of several draft pools one kind of request uses: a pure state machine over measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class ChoiceLimits:
    """How readily a choice changes, and what finding out may cost."""

    margin: float = 0.1
    """Another pool must be faster by this much: measurements are noisy, a change costs steps."""
    min_dwell_seconds: float = 1.0
    """No second change sooner than this."""
    trial_seconds: float = 1.0
    """Longest time that one sequence drafts from another pool to find out."""
    trial_interval_seconds: float = 5.0
    """Time until a pool that lost is tried again; it doubles with each loss."""
    max_trial_interval_seconds: float = 60.0
    fall: float = 0.3
    """A choice that has lost this share of its best tokens per step is called into question."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a pool is tried again."""

    due: float
    interval_seconds: float


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool in use for one workload, and what it takes to change that."""

    pool: str = ""
    """Empty: nothing was chosen yet."""
    since: float = float("-inf")
    best_length: float = 0.0
    """Most tokens per step seen since."""
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """Pools without an entry are tried as soon as possible."""


@dataclass(frozen=True, slots=True)
class PoolsSeen:
    """What is known of the pools at one moment."""

    now: float
    usable: Sequence[str]
    """Pools that can draft, in the verifier's order."""
    speeds: Mapping[str, float]
    """Goodput of the pools that have been measured, in any unit."""
    length: float | None = None
    """Tokens per step of the pool in use; None until measured."""


def settle(choice: PoolChoice, seen: PoolsSeen, limits: ChoiceLimits) -> PoolChoice:
    """Return the choice after a look at the measurements."""
    if not seen.usable:
        return choice
    fastest = max(seen.usable, key=lambda pool: seen.speeds.get(pool, 0.0))
    if choice.pool not in seen.usable:
        return PoolChoice(fastest, seen.now)
    own = seen.speeds.get(choice.pool)
    if own is None or seen.length is None:
        return choice
    is_faster = seen.speeds.get(fastest, 0.0) > (1 + limits.margin) * own
    if is_faster and seen.now - choice.since >= limits.min_dwell_seconds:
        return PoolChoice(fastest, seen.now, schedules=_put_off(choice.pool, seen.now, limits))
    if seen.length < (1 - limits.fall) * choice.best_length:
        return replace(choice, best_length=seen.length, schedules={})
    if seen.length > choice.best_length:
        return replace(choice, best_length=seen.length)
    return choice


def next_trial(choice: PoolChoice, seen: PoolsSeen) -> str:
    """Return the pool to try on one sequence now; empty: none. The pool in use goes first."""
    if choice.pool not in seen.speeds:
        return ""
    for pool in seen.usable:
        schedule = choice.schedules.get(pool)
        if pool != choice.pool and (schedule is None or schedule.due <= seen.now):
            return pool
    return ""


def after_trial(
    choice: PoolChoice, pool: str, now: float, limits: ChoiceLimits, *, is_measured: bool
) -> PoolChoice:
    """Return the choice with the next trial put off; one that told too little is repeated soon."""
    before = choice.schedules.get(pool)
    interval = before.interval_seconds if before else limits.trial_interval_seconds
    if is_measured:
        following = min(2 * interval, limits.max_trial_interval_seconds)
        schedule = Schedule(now + interval, following)
    else:
        schedule = Schedule(now + limits.min_dwell_seconds, interval)
    return replace(choice, schedules={**choice.schedules, pool: schedule})


def _put_off(pool: str, now: float, limits: ChoiceLimits) -> Mapping[str, Schedule]:
    """Leave the pool that has just lost alone for a while; the others were measured before it."""
    interval = limits.trial_interval_seconds
    return {pool: Schedule(now + interval, interval)}
