"""Per kind of request: its pool, and whether drafting pays for it. It knows no sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.drafting_policy import Gate, Observation, PolicyLimits, advance
from gateway.generation import DraftFallback
from gateway.pool_choice import (
    ChoiceLimits,
    PoolChoice,
    PoolsSeen,
    after_trial,
    next_trial,
    settle,
)
from gateway.pool_evidence import PoolEvidence

MAX_WORKLOADS: Final = 1024
"""Kinds of requests that are told apart, per verifier; the one seen longest ago makes room."""

MEASURED_GAIN_TOLERANCE: Final = 0.1
"""Drafting stops for a workload only this far below plain decoding: step times are noisy."""

OPEN: Final = Gate()


Key = tuple[str, str]
"""A verifier's address and a workload: verifiers may reach different pools."""


@dataclass(slots=True)
class _Workload:
    choice: PoolChoice = field(default_factory=PoolChoice)
    gates: dict[str, Gate] = field(default_factory=dict)
    trial: str = ""
    """The pool that a sequence is trying now; empty: none."""


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """What is known of one pool on one workload."""

    verifier: str
    workload: str
    pool: str
    is_chosen: bool
    gate: Gate
    acceptance_length: float | None
    tokens_per_step: float | None
    gain: float | None


class WorkloadPools:
    """
    Bounded by ``MAX_WORKLOADS`` and by the pools that verifiers name.

    A gate here closes on what one workload gets out of a pool; a verifier's gate, on its load.
    """

    def __init__(self, limits: PolicyLimits, clock: Callable[[], float]) -> None:
        self.evidence = PoolEvidence()
        self._clock = clock
        self._workloads: OrderedDict[Key, _Workload] = OrderedDict()
        self.configure(limits)

    def configure(self, limits: PolicyLimits) -> None:
        """Decide by other limits from now on."""
        self._limits = replace(limits, gain_tolerance=MEASURED_GAIN_TOLERANCE)
        self._choice_limits = ChoiceLimits(
            min_dwell_seconds=limits.min_dwell_seconds,
            trial_seconds=limits.probe_seconds,
            trial_interval_seconds=limits.probe_interval_seconds,
        )

    def look(self, key: Key, usable: Sequence[str]) -> bool:
        """Decide anew by what has been measured; return whether anything turned."""
        known = self._touched(key)
        choice = settle(known.choice, self._seen(key, known, usable), self._choice_limits)
        turned = choice.pool != known.choice.pool
        known.choice = choice
        for pool in usable:
            gate = known.gates.get(pool, OPEN)
            seen = Observation(
                self._clock(),
                estimated_gain=self.evidence.gain(key[1], pool) or 1.0,
                acceptance_length=self.evidence.acceptance_length(key[1], pool),
            )
            known.gates[pool] = advance(gate, seen, self._limits)
            turned |= known.gates[pool] != gate
        return turned

    def chosen(self, key: Key) -> str:
        """Return the pool in use; empty before the first look."""
        known = self._workloads.get(key)
        return known.choice.pool if known else ""

    def gate(self, key: Key, pool: str) -> Gate:
        """Return whether drafting from a pool pays for a workload."""
        known = self._workloads.get(key)
        return known.gates.get(pool, OPEN) if known else OPEN

    def put_off_probe(self, key: Key, pool: str) -> None:
        """Take note that a sequence drafts although the gate is closed."""
        known = self._touched(key)
        gate = known.gates.get(pool, OPEN)
        known.gates[pool] = gate.after_probe(self._clock(), self._limits)

    def start_trial(self, key: Key, usable: Sequence[str]) -> str:
        """Return the pool that a sequence should try now, measured afresh; empty: none."""
        known = self._touched(key)
        if known.trial:
            return ""
        pool = next_trial(known.choice, self._seen(key, known, usable))
        if pool:
            known.trial = pool
            self.evidence.forget(key[1], pool)
        return pool

    def is_measured(self, workload: str, pool: str) -> bool:
        """Return whether enough steps tell of a pool."""
        return self.evidence.tokens_per_step(workload, pool) is not None

    def end_trial(self, key: Key) -> None:
        """Take note that the sequence has ended its trial."""
        known = self._workloads.get(key)
        if known is None or not known.trial:
            return
        pool, known.trial = known.trial, ""
        known.choice = after_trial(
            known.choice,
            pool,
            self._clock(),
            self._choice_limits,
            is_measured=self.is_measured(key[1], pool),
        )

    def forget_verifier(self, address: str) -> None:
        """Leave out a verifier that has gone for good."""
        for key in [key for key in self._workloads if key[0] == address]:
            del self._workloads[key]
        self.evidence.forget_verifier(address)

    def reports(self) -> Iterator[WorkloadReport]:
        """Yield what is known of each workload and pool, for people."""
        for (verifier, workload), known in sorted(self._workloads.items()):
            for pool, gate in sorted(known.gates.items()):
                yield WorkloadReport(
                    verifier,
                    workload,
                    pool,
                    pool == known.choice.pool,
                    gate,
                    self.evidence.acceptance_length(workload, pool),
                    self.evidence.tokens_per_step(workload, pool),
                    self.evidence.gain(workload, pool),
                )

    def _seen(self, key: Key, known: _Workload, usable: Sequence[str]) -> PoolsSeen:
        workload = key[1]
        return PoolsSeen(
            self._clock(),
            usable,
            self.evidence.speeds(workload, usable),
            self.evidence.tokens_per_step(workload, known.choice.pool),
        )

    def _touched(self, key: Key) -> _Workload:
        known = self._workloads.get(key)
        if known is None:
            known = self._workloads[key] = _Workload()
            if len(self._workloads) > MAX_WORKLOADS:
                self._workloads.popitem(last=False)
        else:
            self._workloads.move_to_end(key)
        return known


def closed_cause(gate: Gate) -> str:
    """Return why a gate is closed, in one word; empty while it is open."""
    return "" if gate.cause is DraftFallback.UNSPECIFIED else gate.cause.name.lower()
