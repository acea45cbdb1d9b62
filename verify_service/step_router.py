"""
Between the engine thread and the streams: commands in, each step's output out to whom it concerns.

One message per step and stream: a stream's outbox gathers until its writer takes all of it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from paceline.errors import PacelineError
from verify_service.draft_link import DraftLink
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.steps import (
    CancelSequence,
    Command,
    Load,
    SequenceFailure,
    SequenceStep,
    StepOutput,
    Submit,
)
from verify_service.sequence_traces import SequenceTraces


class Outbox(Protocol):
    """Where the steps of some sequences go."""

    def put_step(self, step: SequenceStep) -> None:
        """Take what one step did for one of the sequences."""
        ...

    def put_failure(self, failure: SequenceFailure) -> None:
        """Take the failure of one of the sequences."""
        ...

    def flush(self, load: Load) -> None:
        """Take note that a step is complete."""
        ...


class StepRouter:
    """Knows which outbox each sequence belongs to. Lives on the event loop."""

    def __init__(
        self,
        send: Callable[[Command], None],
        links: Mapping[str, DraftLink],
        traces: SequenceTraces | None = None,
        *,
        step_timeout_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.load = Load()
        self.is_draining = False
        """Gateways are told to send no more."""
        self.is_closed = False
        """What they send all the same is refused."""
        self.traces = traces or SequenceTraces()
        self._send = send
        self._links = links
        self._ids = itertools.count(1)
        self._outbox_of: dict[int, Outbox] = {}
        self._outboxes: set[Outbox] = set()
        self._step_timeout_seconds = step_timeout_seconds
        self._clock = clock
        self._moving: set[int] = set()
        """Sequences that wait for the engine alone."""
        self._owed_since: float | None = None
        """Since when the engine owes an output; it stays when those who waited for it have left."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_sequences(self) -> int:
        """Sequences that have not ended."""
        return len(self._outbox_of)

    @property
    def is_stuck(self) -> bool:
        """Whether the engine has had work and given no sign of life for too long."""
        since = self._owed_since
        return since is not None and self._clock() - since > self._step_timeout_seconds

    def next_id(self) -> int:
        """Return a sequence id that was never used."""
        return next(self._ids)

    def attach(self, outbox: Outbox) -> None:
        """Send load reports to an outbox."""
        self._outboxes.add(outbox)

    def detach(self, outbox: Outbox) -> None:
        """Cancel every sequence of an outbox and forget it."""
        self._outboxes.discard(outbox)
        for sequence_id in [s for s, owner in self._outbox_of.items() if owner is outbox]:
            self.cancel(sequence_id)
            self._ended(sequence_id, "DETACHED")

    def submit(self, request: Request, drafting: Drafting, outbox: Outbox) -> None:
        """Start a sequence whose steps go to ``outbox``; raises ``Overloaded``."""
        self._send(Submit(request, drafting))
        self._outbox_of[request.sequence_id] = outbox
        if not request.lockstep:
            self._moving.add(request.sequence_id)
            if self._owed_since is None:
                self._owed_since = self._clock()
        self._idle.clear()

    def cancel(self, sequence_id: int) -> None:
        """End a sequence; its last step still comes unless its outbox is gone."""
        self._send(CancelSequence(sequence_id))

    def send(self, command: Command) -> None:
        """Hand a command to the engine."""
        self._send(command)

    def deliver(self, output: StepOutput) -> None:
        """Distribute one step's output."""
        self.load = output.load
        self.traces.observe(output.steps)
        for step in output.steps:
            outbox = self._outbox_of.get(step.sequence_id)
            if outbox is not None:
                outbox.put_step(step)
                if step.finish_reason is not None:
                    self._ended(step.sequence_id, step.finish_reason.name)
        for failure in output.failures:
            outbox = self._outbox_of.get(failure.sequence_id)
            if outbox is not None:
                outbox.put_failure(failure)
                self._ended(failure.sequence_id, failure.error.reason, failed=True)
        for pool, link in self._links.items():
            link.publish(event for event in output.session_events if event.pool == pool)
        for outbox in self._outboxes:
            outbox.flush(output.load)
        self._owed_since = self._clock() if self._moving else None

    def fail_all(self, error: PacelineError) -> None:
        """End every sequence with ``error`` without the engine's help."""
        for sequence_id, outbox in list(self._outbox_of.items()):
            outbox.put_failure(SequenceFailure(sequence_id, error))
            self._ended(sequence_id, error.reason, failed=True)
        for outbox in self._outboxes:
            outbox.flush(self.load)

    async def wait_until_idle(self) -> None:
        """Return once no sequence is left."""
        await self._idle.wait()

    def _ended(self, sequence_id: int, outcome: str, *, failed: bool = False) -> None:
        self._outbox_of.pop(sequence_id, None)
        self._moving.discard(sequence_id)
        self.traces.ended(sequence_id, outcome, failed=failed)
        if not self._outbox_of:
            self._idle.set()
