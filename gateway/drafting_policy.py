"""When drafting pays: a pure state machine over observations. It sends nothing, reads no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.generation import (
    DraftFallback,
    DraftingChoice,
    DraftingMode,
    DraftingWish,
    DraftPool,
    PoolCause,
    PriorityClass,
)


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """Where the gate closes and how soon it may turn."""

    max_running_to_draft: int = 32
    """Running sequences at a verifier above which drafting stops."""
    resume_fraction: float = 0.8
    """Drafting comes back at this share of the ceiling."""
    min_acceptance_length: float = 1.3
    min_gain: float = 1.0
    gain_tolerance: float = 0.03
    """Gains are measured and noisy: drafting stops only this far below the floor."""
    resume_margin: float = 0.02
    """What gain and acceptance length must exceed their floors by before drafting comes back."""
    min_dwell_seconds: float = 1.0
    """No second turn sooner than this."""
    probe_interval_seconds: float = 5.0
    """While drafting does not pay, one request in this time drafts all the same, to find out."""
    probe_seconds: float = 1.0
    """How long a probe drafts."""

    @property
    def max_running_to_resume(self) -> int:
        """Running sequences at which drafting comes back."""
        return max(1, int(self.max_running_to_draft * self.resume_fraction))


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one pool at one verifier."""

    now: float
    num_running: int = 0
    estimated_gain: float = 1.0
    """Exactly 1 when unknown."""
    acceptance_length: float | None = None
    """None until enough steps were drafted."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether requests in mode auto draft from one pool at one verifier."""

    is_open: bool = True
    cause: DraftFallback = DraftFallback.UNSPECIFIED
    """Why it is closed."""
    since: float = float("-inf")
    """When it last turned."""
    next_probe: float = float("inf")

    def probe_is_due(self, now: float) -> bool:
        """Return whether a request should draft although the gate is closed."""
        return self.cause is DraftFallback.NO_GAIN and now >= self.next_probe

    def after_probe(self, now: float, limits: PolicyLimits) -> Gate:
        """Return the gate with the next probe put off."""
        return replace(self, next_probe=now + limits.probe_interval_seconds)


def advance(gate: Gate, seen: Observation, limits: PolicyLimits) -> Gate:
    """Return the gate after an observation."""
    if gate.is_open:
        cause = _cause_to_close(seen, limits)
    else:
        cause = _cause_to_stay_closed(gate, seen, limits)
    should_be_open = cause is DraftFallback.UNSPECIFIED
    if should_be_open == gate.is_open:
        return gate if gate.cause is cause else replace(gate, cause=cause)
    if seen.now - gate.since < limits.min_dwell_seconds:
        return gate
    if should_be_open:
        return Gate(since=seen.now)
    next_probe = seen.now + limits.probe_interval_seconds
    return Gate(is_open=False, cause=cause, since=seen.now, next_probe=next_probe)


def _cause_to_close(seen: Observation, limits: PolicyLimits) -> DraftFallback:
    if seen.num_running > limits.max_running_to_draft:
        return DraftFallback.LOAD
    is_loss = seen.estimated_gain < limits.min_gain - limits.gain_tolerance
    if is_loss or _is_below(seen, limits.min_acceptance_length):
        return DraftFallback.NO_GAIN
    return DraftFallback.UNSPECIFIED


def _cause_to_stay_closed(gate: Gate, seen: Observation, limits: PolicyLimits) -> DraftFallback:
    if seen.num_running > limits.max_running_to_resume:
        return DraftFallback.LOAD
    # A gain of exactly 1 says that the verifier does not know; it may only not know because
    # nothing drafts, so after a while that is enough.
    waited = seen.now - gate.since >= limits.probe_interval_seconds
    margin = 0.0 if waited else limits.resume_margin
    was_no_gain = gate.cause is DraftFallback.NO_GAIN
    needed_gain = limits.min_gain + (margin if was_no_gain else 0.0)
    needed_length = limits.min_acceptance_length + limits.resume_margin
    if seen.estimated_gain < needed_gain or _is_below(seen, needed_length):
        return DraftFallback.NO_GAIN
    return DraftFallback.UNSPECIFIED


def _is_below(seen: Observation, length: float) -> bool:
    return seen.acceptance_length is not None and seen.acceptance_length < length


def decide(
    wish: DraftingWish,
    priority: PriorityClass,
    pool: DraftPool | None,
    gate: Gate,
    *,
    is_probe: bool = False,
    cause: PoolCause = PoolCause.UNSPECIFIED,
) -> DraftingChoice:
    """
    Return which drafts a request uses.

    A pool that cannot be reached right now is named all the same: it costs the verifier nothing,
    and drafts flow from the moment it is back.
    """
    fallback = _why_not(wish, priority, pool, gate, is_probe=is_probe)
    if pool is None or fallback not in _POOL_STAYS_NAMED:
        return DraftingChoice(fallback=fallback)
    return DraftingChoice(pool.name, wish.max_draft_tokens, fallback, cause)


_POOL_STAYS_NAMED = frozenset({DraftFallback.UNSPECIFIED, DraftFallback.UNREACHABLE})


def _why_not(
    wish: DraftingWish,
    priority: PriorityClass,
    pool: DraftPool | None,
    gate: Gate,
    *,
    is_probe: bool,
) -> DraftFallback:
    if wish.mode is DraftingMode.OFF:
        return DraftFallback.REQUESTED
    if pool is None:
        return DraftFallback.NO_POOL
    if not pool.available and pool.cause is not DraftFallback.UNREACHABLE:
        return pool.cause or DraftFallback.NO_POOL
    is_auto = wish.mode is DraftingMode.AUTO
    if is_auto and priority is PriorityClass.BATCH:
        return DraftFallback.PRIORITY
    if is_auto and not gate.is_open and not is_probe:
        return gate.cause
    return DraftFallback.UNSPECIFIED if pool.available else DraftFallback.UNREACHABLE
