"""Carries the drafting policy to running sequences. What it decides is in ``drafting_policy``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.counters import Counters
from gateway.drafting_policy import Gate, Observation, PolicyLimits, advance, decide
from gateway.generation import (
    DraftFallback,
    DraftingChoice,
    DraftingMode,
    DraftingWish,
    ModelInfo,
    PoolCause,
    PriorityClass,
    Step,
    VerifierLoad,
)
from gateway.pool_evidence import Cell
from gateway.workload_pools import OPEN, Key, WorkloadPools
from paceline.routing import Routing

SETTLING_STEPS: Final = 3
"""Steps after a change of drafts that still tell of the former ones."""

LOOK_SECONDS: Final = 0.25
"""Time between two looks at workloads; sooner, hardly anything has changed."""


class DraftedSequence(Protocol):
    """A running sequence as the policy sees it."""

    wish: DraftingWish
    priority: PriorityClass

    def set_drafting(self, choice: DraftingChoice) -> None:
        """Use other drafts from now on."""


class PolicyView(Protocol):
    """A verifier as the policy sees it."""

    address: str
    info: ModelInfo | None

    @property
    def load(self) -> VerifierLoad:
        """How busy it is."""

    @property
    def num_sequences(self) -> int:
        """Sequences of this gateway that are open there."""


@dataclass(slots=True, eq=False)
class _Tracked:
    """A running sequence and what the policy has it do."""

    sequence: DraftedSequence
    verifier: PolicyView
    share: float
    choice: DraftingChoice = field(default_factory=DraftingChoice)
    trial: str = ""
    """The pool that it drafts from only to find out; empty: none."""
    tries_rival: bool = False
    """Whether that is another pool than the one in use."""
    trial_until: float = 0.0
    settling_steps: int = 0
    last_step_at: float | None = None

    @property
    def key(self) -> Key:
        """What its pool is chosen by."""
        return self.verifier.address, self.sequence.wish.workload

    @property
    def may_try(self) -> bool:
        """Whether it may draft to find out."""
        return (
            not self.trial
            and self.sequence.wish.mode is DraftingMode.AUTO
            and self.sequence.priority is not PriorityClass.BATCH
        )


class DraftingController:
    """
    Keeps one gate per verifier and pool, and tells running sequences what changes for them.

    The pool of a request is the one that it names, else the routing file's, else the default of
    the settings, else the one that measured best for its workload. Bounded: gates by verifiers and
    their pools, workloads by ``WorkloadPools``, the rest by running sequences.
    """

    def __init__(
        self,
        limits: PolicyLimits,
        *,
        default_pool: str,
        counters: Counters,
        clock: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._default_pool = default_pool
        self._counters = counters
        self._clock = clock
        self._draw = draw
        self.routing = Routing()
        """How requests that name no pool are shared out."""
        self.workloads = WorkloadPools(limits, clock)
        self._gates: dict[tuple[str, str], Gate] = {}
        self._tracked: dict[DraftedSequence, _Tracked] = {}
        self._by_verifier: dict[str, dict[DraftedSequence, _Tracked]] = {}
        self._num_trials = 0
        self._next_looks: dict[str, float] = {}
        self._cells: dict[str, Cell] = {}
        """Where the step times of a verifier are told to belong now."""

    def admit(self, verifier: PolicyView, sequence: DraftedSequence) -> DraftingChoice:
        """Return a new sequence's drafts, and keep them up to date from now on."""
        tracked = _Tracked(sequence, verifier, self._draw())
        self._tracked[sequence] = tracked
        self._by_verifier.setdefault(verifier.address, {})[sequence] = tracked
        self._advance_gates(verifier, num_new=1)
        self.workloads.look(tracked.key, _usable_pools(verifier))
        self._start_trial_if_due(tracked)
        tracked.choice = self._decide(tracked)
        self._count(tracked.choice)
        return tracked.choice

    def forget(self, verifier: PolicyView, sequence: DraftedSequence) -> None:
        """Leave a sequence alone: it has ended or moved."""
        self._by_verifier.get(verifier.address, {}).pop(sequence, None)
        tracked = self._tracked.pop(sequence, None)
        if tracked is not None and tracked.trial:
            self._end_trial(tracked)

    def forget_verifier(self, address: str) -> None:
        """Leave a verifier alone that has gone for good."""
        for tracked in self._by_verifier.pop(address, {}).values():
            del self._tracked[tracked.sequence]
            self._num_trials -= bool(tracked.trial)
        for key in [key for key in self._gates if key[0] == address]:
            del self._gates[key]
        self._next_looks.pop(address, None)
        self._cells.pop(address, None)
        self.workloads.forget_verifier(address)

    def configure(self, limits: PolicyLimits, default_pool: str) -> None:
        """Decide by other limits from now on."""
        self._limits = limits
        self._default_pool = default_pool
        self.workloads.configure(limits)

    def use_routing(self, routing: Routing) -> None:
        """
        Share out requests that name no pool as this says.

        Running ones follow at the next ``refresh`` of their verifier with ``pools_changed``.
        """
        self.routing = routing

    def refresh(self, verifier: PolicyView, *, pools_changed: bool = False) -> None:
        """Look at a verifier again, and tell its sequences what changed."""
        turned = self._advance_gates(verifier)
        tracked = self._by_verifier.get(verifier.address, {})
        if self._num_trials:
            turned |= self._end_trials(tracked.values())
        if pools_changed or self._is_time_to_look(verifier.address):
            turned |= self._look_at_workloads(verifier, tracked)
        if self._any_probe_is_due(verifier):
            for each in tracked.values():
                turned |= self._start_trial_if_due(each)
        if turned or pools_changed:
            for each in list(tracked.values()):
                self._tell(each)

    def observe_step(self, sequence: DraftedSequence, step: Step) -> None:
        """Learn from a step what its pool is worth, and at which cost."""
        tracked = self._tracked.get(sequence)
        if tracked is None:
            return
        now, before = self._clock(), tracked.last_step_at
        tracked.last_step_at = now
        if tracked.settling_steps or step.is_prefill or not step.token_ids:
            tracked.settling_steps = max(0, tracked.settling_steps - 1)
            return
        evidence, pool = self.workloads.evidence, tracked.choice.pool
        if pool and step.fallback is not DraftFallback.UNSPECIFIED:
            return  # A pool that is away shows nothing of what it is worth.
        if pool:
            evidence.add_step(sequence.wish.workload, pool, step)
        if before is not None:
            cell = self._cells.get(tracked.verifier.address)
            if cell is not None:
                evidence.add_seconds(cell, pool, now - before)

    @property
    def limits(self) -> PolicyLimits:
        """Where gates close now."""
        return self._limits

    @property
    def default_pool(self) -> str:
        """Pool of requests that name none where the routing says none; empty: measured."""
        return self._default_pool

    def gates(self) -> dict[tuple[str, str], Gate]:
        """Return the gate of each (verifier address, pool)."""
        return dict(self._gates)

    def _advance_gates(self, verifier: PolicyView, *, num_new: int = 0) -> bool:
        if verifier.info is None:
            return False
        load = verifier.load
        running = max(load.num_running + load.num_waiting, verifier.num_sequences) + num_new
        self._cells[verifier.address] = (verifier.address, load.num_running.bit_length())
        seen = Observation(self._clock(), running, load.estimated_gain)
        turned = False
        for pool in verifier.info.draft_pools:
            key = (verifier.address, pool.name)
            gate = self._gates.get(key, OPEN)
            advanced = advance(gate, seen, self._limits)
            if advanced is not gate or key not in self._gates:
                self._gates[key] = advanced
                turned |= advanced != gate
        return turned

    def _is_time_to_look(self, address: str) -> bool:
        now = self._clock()
        if now < self._next_looks.get(address, now):
            return False
        self._next_looks[address] = now + LOOK_SECONDS
        return True

    def _look_at_workloads(
        self, verifier: PolicyView, tracked: dict[DraftedSequence, _Tracked]
    ) -> bool:
        usable, turned = _usable_pools(verifier), False
        for key in dict.fromkeys(each.key for each in tracked.values()):
            turned |= self.workloads.look(key, usable)
        for each in tracked.values():
            turned |= self._start_trial_if_due(each)
        return turned

    def _any_probe_is_due(self, verifier: PolicyView) -> bool:
        now = self._clock()
        pools = verifier.info.draft_pools if verifier.info else ()
        return any(
            self._gates.get((verifier.address, pool.name), OPEN).probe_is_due(now) for pool in pools
        )

    def _start_trial_if_due(self, tracked: _Tracked) -> bool:
        if not tracked.may_try:
            return False
        name, cause = self._pool_of(tracked)
        pool = self._due_probe(tracked, name)
        if not pool and cause is PoolCause.MEASURED and self._gate(tracked, name).is_open:
            pool = self.workloads.start_trial(tracked.key, _usable_pools(tracked.verifier))
        if not pool:
            return False
        tracked.trial, tracked.tries_rival = pool, pool != name
        self._num_trials += 1
        tracked.trial_until = self._clock() + self._limits.probe_seconds
        self._counters.increment("probes", pool)
        return True

    def _due_probe(self, tracked: _Tracked, pool: str) -> str:
        """Return the pool itself if one of its gates is closed and wants to know again."""
        now, key = self._clock(), (tracked.verifier.address, pool)
        gate, own = self._gate(tracked, pool), self.workloads.gate(tracked.key, pool)
        is_due = gate.probe_is_due(now) or (gate.is_open and own.probe_is_due(now))
        if not is_due:
            return ""
        if not gate.is_open:
            self._gates[key] = gate.after_probe(now, self._limits)
        if not own.is_open:
            self.workloads.put_off_probe(tracked.key, pool)
        return pool

    def _end_trials(self, tracked: Iterable[_Tracked]) -> bool:
        now, ended = self._clock(), False
        for each in tracked:
            if each.trial and (each.trial_until <= now or self._is_known(each)):
                self._end_trial(each)
                ended = True
        return ended

    def _is_known(self, tracked: _Tracked) -> bool:
        return tracked.tries_rival and self.workloads.is_measured(tracked.key[1], tracked.trial)

    def _end_trial(self, tracked: _Tracked) -> None:
        tracked.trial = ""
        self._num_trials -= 1
        if tracked.tries_rival:
            tracked.tries_rival = False
            self.workloads.end_trial(tracked.key)

    def _tell(self, tracked: _Tracked) -> None:
        choice = self._decide(tracked)
        if choice != tracked.choice:
            tracked.choice = choice
            tracked.settling_steps = SETTLING_STEPS
            self._count(choice)
            tracked.sequence.set_drafting(choice)

    def _decide(self, tracked: _Tracked) -> DraftingChoice:
        name, cause = self._pool_of(tracked)
        if tracked.tries_rival:
            name, cause = tracked.trial, PoolCause.TRIAL
        info, sequence = tracked.verifier.info, tracked.sequence
        gate = self._gate(tracked, name)
        return decide(
            sequence.wish,
            sequence.priority,
            info.pool(name) if info and name else None,
            gate if not gate.is_open else self.workloads.gate(tracked.key, name),
            is_probe=bool(tracked.trial),
            cause=cause,
        )

    def _gate(self, tracked: _Tracked, pool: str) -> Gate:
        return self._gates.get((tracked.verifier.address, pool), OPEN)

    def _pool_of(self, tracked: _Tracked) -> tuple[str, PoolCause]:
        """Return the sequence's pool and why it is that one."""
        info = tracked.verifier.info
        named, cause = self._named_pool(tracked)
        if named or info is None or not info.draft_pools:
            return named, cause
        if len(info.draft_pools) == 1:
            return info.draft_pools[0].name, PoolCause.DEFAULT
        chosen = self.workloads.chosen(tracked.key)
        return chosen or info.draft_pools[0].name, PoolCause.MEASURED

    def _named_pool(self, tracked: _Tracked) -> tuple[str, PoolCause]:
        if tracked.sequence.wish.pool:
            return tracked.sequence.wish.pool, PoolCause.REQUESTED
        routed = self.routing.pool_at(tracked.share)
        if routed:
            return routed, PoolCause.ROUTED
        return self._default_pool, PoolCause.DEFAULT

    def _count(self, choice: DraftingChoice) -> None:
        if choice.pool:
            self._counters.increment("pool_choices", choice.pool, choice.cause.name.lower())


def _usable_pools(verifier: PolicyView) -> tuple[str, ...]:
    pools = verifier.info.draft_pools if verifier.info else ()
    return tuple(pool.name for pool in pools if pool.available)
