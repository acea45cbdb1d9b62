"""
A verifier's engine with a simulated target and drafter on one virtual clock, without a network.

The engine, its scheduler, budget and calibration are the real ones. The loop around it does what
``EngineThread`` does, including the bounded wait for trees in flight.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch

from bench.simulated_drafter import WORKLOADS, SimulatedDrafter, Workload
from paceline.noise import mix64
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import (
    Command,
    PoolUp,
    SessionClosed,
    SessionCommitted,
    SessionEvent,
    SessionOpened,
    StepOutput,
    TreeFact,
)
from verify_service.targets.roofline import Roofline
from verify_service.targets.simulated import SimulatedTarget, VirtualClock
from verify_service.targets.target import FlatBatch
from verify_service.warm_up import warm_up

POOL: Final = "simulated"
WORKLOAD_NAMES: Final = tuple(WORKLOADS)


@dataclass(frozen=True, slots=True)
class DraftTiming:
    """When trees arrive after a commit."""

    round_trip_seconds: float = 0.6e-3
    draft_seconds: float = 8e-3
    """What a tree takes where the drafter had not worked ahead on what was committed."""
    ahead_rate: float = 0.8
    """How often it had."""

    def delay(self, sequence_id: int, base_len: int) -> float:
        """Return how long after a commit its tree arrives."""
        drawn = mix64(sequence_id * 1_000_003 + base_len) / 2**64
        is_ahead = drawn < self.ahead_rate
        return self.round_trip_seconds + (0.0 if is_ahead else self.draft_seconds)


def workload_of(sequence_id: int) -> Workload:
    """Return the kind of text of a request: chat, code and edits in turn."""
    return WORKLOADS[WORKLOAD_NAMES[sequence_id % len(WORKLOAD_NAMES)]]


class MeteredTarget(SimulatedTarget):
    """A simulated target that knows how much of this machine's time it took itself."""

    cpu_seconds = 0.0

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Let the step's time pass."""
        begun = time.thread_time()
        logits = super().forward(batch)
        self.cpu_seconds += time.thread_time() - begun
        return logits


@dataclass(slots=True)
class HostTime:
    """CPU time of this machine that the engine took: steps, merges of trees, waits."""

    seconds: float = 0.0
    num_steps: int = 0

    @property
    def milliseconds_per_step(self) -> float:
        """The mean."""
        return 1e3 * self.seconds / max(self.num_steps, 1)


@dataclass
class VirtualLine:
    """One engine, one drafter, one clock."""

    roofline: Roofline
    config: EngineConfig
    shape_drafter: Callable[[SimulatedTarget], SimulatedDrafter]
    timing: DraftTiming = field(default_factory=DraftTiming)
    workload_of: Callable[[int], Workload] = workload_of
    host: HostTime = field(default_factory=HostTime)

    def __post_init__(self) -> None:
        """Build the engine and warm it up."""
        self.clock = VirtualClock()
        self.target = MeteredTarget(self.roofline, self.clock)
        self.engine = StepEngine(self.target, self.config, clock=self.clock)
        warm_up(self.engine)
        self.drafter = self.shape_drafter(self.target)
        self._in_flight: list[tuple[float, int, TreeFact]] = []
        self._committed: dict[int, list[int]] = {}
        self._num_facts = 0
        self.engine.apply(PoolUp(POOL))

    def apply(self, command: Command) -> None:
        """Hand the engine a command."""
        self.engine.apply(command)

    def step(self) -> StepOutput:
        """Wait for trees as long as it pays, do one step, let the drafter see what came of it."""
        begun, own = time.thread_time(), self.target.cpu_seconds
        self._deliver()
        self._wait_for_trees()
        output = self.engine.step()
        self.host.seconds += time.thread_time() - begun - (self.target.cpu_seconds - own)
        self.host.num_steps += 1
        for event in output.session_events:
            self._tell_drafter(event)
        return output

    def _wait_for_trees(self) -> None:
        until = self.clock() + self.engine.draft_wait_seconds()
        while self.clock() < until:
            arrival = self._in_flight[0][0] if self._in_flight else until
            self.clock.sleep(min(arrival, until) - self.clock())
            self._deliver()
            if self.engine.draft_wait_seconds() == 0.0:
                return

    def _deliver(self) -> None:
        while self._in_flight and self._in_flight[0][0] <= self.clock():
            self.engine.apply(heapq.heappop(self._in_flight)[2])

    def _tell_drafter(self, event: SessionEvent) -> None:
        match event:
            case SessionOpened(_, request, committed, _):
                self._committed[request.sequence_id] = list(committed)
                self._propose(request.sequence_id)
            case SessionCommitted(_, sequence_id, base_len, token_ids):
                self._committed[sequence_id][base_len:] = token_ids
                self._propose(sequence_id)
            case SessionClosed(_, sequence_id):
                self._committed.pop(sequence_id, None)

    def _propose(self, sequence_id: int) -> None:
        committed = self._committed[sequence_id]
        tree = self.drafter.propose(self.workload_of(sequence_id), sequence_id, committed)
        fact = TreeFact(sequence_id, len(committed), tree, POOL)
        arrival = self.clock() + self.timing.delay(sequence_id, len(committed))
        self._num_facts += 1
        heapq.heappush(self._in_flight, (arrival, self._num_facts, fact))
