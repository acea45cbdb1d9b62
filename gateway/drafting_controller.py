"""Carries the drafting policy to running sequences. What it decides is in ``drafting_policy``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from gateway.counters import Counters
from gateway.drafting_policy import (
    AcceptanceAverage,
    Gate,
    Observation,
    PolicyLimits,
    advance,
    decide,
)
from gateway.generation import (
    DraftingChoice,
    DraftingMode,
    DraftingWish,
    ModelInfo,
    PriorityClass,
    Step,
    VerifierLoad,
)
from paceline.routing import Routing


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
    load: VerifierLoad

    @property
    def num_sequences(self) -> int:
        """Sequences of this gateway that are open there."""


class DraftingController:
    """
    Keeps one gate per verifier and pool, and tells running sequences when it turns.

    Bounded: gates by verifiers and their pools, the rest by running sequences.
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
        self._shares: dict[DraftedSequence, float] = {}
        self._gates: dict[tuple[str, str], Gate] = {}
        self._acceptance: dict[str, AcceptanceAverage] = {}
        self._sequences: dict[str, dict[DraftedSequence, DraftingChoice]] = {}
        self._probes: dict[DraftedSequence, float] = {}

    def admit(self, verifier: PolicyView, sequence: DraftedSequence) -> DraftingChoice:
        """Return a new sequence's drafts, and keep them up to date from now on."""
        self._shares[sequence] = self._draw()
        self._advance_gates(verifier, num_new=1)
        self._start_probe_if_due(verifier, sequence)
        choice = self._decide(verifier, sequence)
        self._sequences.setdefault(verifier.address, {})[sequence] = choice
        return choice

    def forget(self, verifier: PolicyView, sequence: DraftedSequence) -> None:
        """Leave a sequence alone: it has ended or moved."""
        self._sequences.get(verifier.address, {}).pop(sequence, None)
        self._probes.pop(sequence, None)
        self._shares.pop(sequence, None)

    def forget_verifier(self, address: str) -> None:
        """Leave a verifier alone that has gone for good."""
        self._sequences.pop(address, None)
        for key in [key for key in self._gates if key[0] == address]:
            del self._gates[key]

    def configure(self, limits: PolicyLimits, default_pool: str) -> None:
        """Decide by other limits from now on."""
        self._limits = limits
        self._default_pool = default_pool

    def use_routing(self, routing: Routing) -> None:
        """
        Share out requests that name no pool as this says.

        Running ones follow at the next ``refresh`` of their verifier with ``pools_changed``.
        """
        self.routing = routing

    def refresh(self, verifier: PolicyView, *, pools_changed: bool = False) -> None:
        """Look at a verifier again, and tell its sequences what changed."""
        turned = self._advance_gates(verifier)
        sequences = self._sequences.get(verifier.address, {})
        probes_changed = self._end_probes()
        if self._any_probe_is_due(verifier):
            for sequence in sequences:
                probes_changed |= self._start_probe_if_due(verifier, sequence)
        if not (turned or probes_changed or pools_changed):
            return
        for sequence, current in list(sequences.items()):
            choice = self._decide(verifier, sequence)
            if choice != current:
                sequences[sequence] = choice
                sequence.set_drafting(choice)

    def observe_step(self, pool: str, step: Step) -> None:
        """Learn a pool's acceptance from a step that verified drafts."""
        if step.num_drafted and not step.is_prefill:
            average = self._acceptance.get(pool, AcceptanceAverage())
            self._acceptance[pool] = average.add(step.num_accepted)

    def gates(self) -> dict[tuple[str, str], Gate]:
        """Return the gate of each (verifier address, pool)."""
        return dict(self._gates)

    def _advance_gates(self, verifier: PolicyView, *, num_new: int = 0) -> bool:
        if verifier.info is None:
            return False
        reported = verifier.load.num_running + verifier.load.num_waiting
        running = max(reported, verifier.num_sequences) + num_new
        turned = False
        for pool in verifier.info.draft_pools:
            key = (verifier.address, pool.name)
            gate = self._gates.get(key, Gate())
            average = self._acceptance.get(pool.name, AcceptanceAverage())
            seen = Observation(self._clock(), running, verifier.load.estimated_gain, average.length)
            self._gates[key] = advance(gate, seen, self._limits)
            turned = turned or self._gates[key] != gate
        return turned

    def _any_probe_is_due(self, verifier: PolicyView) -> bool:
        now = self._clock()
        pools = verifier.info.draft_pools if verifier.info else ()
        return any(
            gate.probe_is_due(now)
            for pool in pools
            if (gate := self._gates.get((verifier.address, pool.name)))
        )

    def _start_probe_if_due(self, verifier: PolicyView, sequence: DraftedSequence) -> bool:
        is_eligible = (
            sequence.wish.mode is DraftingMode.AUTO and sequence.priority is not PriorityClass.BATCH
        )
        pool = self._pool_name(verifier, sequence)
        key = (verifier.address, pool)
        gate = self._gates.get(key, Gate())
        now = self._clock()
        if not is_eligible or not gate.probe_is_due(now):
            return False
        self._gates[key] = gate.after_probe(now, self._limits)
        self._probes[sequence] = now + self._limits.probe_seconds
        self._counters.increment("probes", pool)
        return True

    def _end_probes(self) -> bool:
        now = self._clock()
        ended = [sequence for sequence, until in self._probes.items() if until <= now]
        for sequence in ended:
            del self._probes[sequence]
        return bool(ended)

    def _decide(self, verifier: PolicyView, sequence: DraftedSequence) -> DraftingChoice:
        name = self._pool_name(verifier, sequence)
        pool = verifier.info.pool(name) if verifier.info and name else None
        return decide(
            sequence.wish,
            sequence.priority,
            pool,
            self._gates.get((verifier.address, name), Gate()),
            is_probe=sequence in self._probes,
        )

    def _pool_name(self, verifier: PolicyView, sequence: DraftedSequence) -> str:
        """Return the request's pool, the routing's, the default, or the verifier's first."""
        share = self._shares.get(sequence, 0.0)
        name = sequence.wish.pool or self.routing.pool_at(share) or self._default_pool
        pool = verifier.info.pool(name) if verifier.info else None
        return pool.name if pool else name
