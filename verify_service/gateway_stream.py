"""One gateway's ``Attach`` stream: its requests by id, and the outbox of its next message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from paceline.errors import Cancelled, InvalidRequest, PacelineError, Unavailable
from paceline.trace_context import received_context
from paceline.v1 import verify_service_pb2
from verify_service.codec import (
    drafting_from_proto,
    failure_to_proto,
    load_to_proto,
    request_from_proto,
    step_to_proto,
)
from verify_service.engine.constraint import Constraint
from verify_service.engine.sampling import SamplingParams
from verify_service.engine.steps import ChangeDrafting, Load, SequenceFailure, SequenceStep
from verify_service.step_router import StepRouter
from verify_service.targets.target import TargetInfo

CompileConstraint = Callable[[verify_service_pb2.Start], Awaitable[Constraint]]

IDLE_REPORT_SECONDS = 0.25
MAX_OUTBOX_RESULTS = 100_000
"""A gateway that leaves this many results unread is taken for dead."""


class GatewayStream:
    """The state of one ``Attach`` call."""

    def __init__(
        self,
        router: StepRouter,
        info: TargetInfo,
        defaults: SamplingParams,
        max_running: int,
        compile_constraint: CompileConstraint,
    ) -> None:
        self._router = router
        self._info = info
        self._defaults = defaults
        self._max_running = max_running
        self._compile_constraint = compile_constraint
        self._compiling: dict[int, asyncio.Task[None]] = {}
        self._sequence_of: dict[int, int] = {}
        self._request_of: dict[int, int] = {}
        self._message = verify_service_pb2.AttachResponse()
        self._num_results = 0
        self._ready = asyncio.Event()
        self._told_draining = False
        self._is_abandoned = False

    def receive(self, message: verify_service_pb2.AttachRequest) -> None:
        """Pass one message's operations on to the engine."""
        for start in message.starts:
            self._start(start)
        for change in message.set_draftings:
            sequence_id = self._sequence_of.get(change.request_id)
            if sequence_id is not None:
                drafting = drafting_from_proto(change.drafting)
                self._router.send(ChangeDrafting(sequence_id, drafting))
        for cancel in message.cancels:
            self._cancel(cancel.request_id)

    def close(self) -> None:
        """Stop what is still being prepared."""
        for task in self._compiling.values():
            task.cancel()

    async def messages(self) -> AsyncIterator[verify_service_pb2.AttachResponse]:
        """Yield one message per step with results, and load reports while idle."""
        while True:
            try:
                async with asyncio.timeout(IDLE_REPORT_SECONDS):
                    await self._ready.wait()
            except TimeoutError:
                pass
            self._ready.clear()
            if self._is_abandoned:
                raise Unavailable("the gateway did not read its stream")
            message, self._message = self._message, verify_service_pb2.AttachResponse()
            self._num_results = 0
            message.load.CopyFrom(load_to_proto(self._router.load, self._max_running))
            message.draining = self._router.is_draining
            yield message

    def put_step(self, step: SequenceStep) -> None:
        """Add a step's result to the next message."""
        request_id = self._request_of.get(step.sequence_id)
        if request_id is None:
            return
        self._message.results.append(step_to_proto(step, request_id))
        self._num_results += 1
        if step.finish_reason is not None:
            self._forget(step.sequence_id)
        if self._num_results > MAX_OUTBOX_RESULTS:
            self._abandon()

    def put_failure(self, failure: SequenceFailure) -> None:
        """Add a failure to the next message."""
        request_id = self._request_of.get(failure.sequence_id)
        if request_id is not None:
            self._message.failures.append(failure_to_proto(failure, request_id))
            self._num_results += 1
            self._forget(failure.sequence_id)

    def flush(self, load: Load) -> None:
        """Send the message if it holds anything."""
        del load  # The writer reads the newest one.
        if self._num_results or (self._router.is_draining and not self._told_draining):
            self._told_draining = self._router.is_draining
            self._ready.set()

    def _start(self, message: verify_service_pb2.Start) -> None:
        request_id = message.request_id
        if request_id in self._sequence_of or request_id in self._compiling:
            error = InvalidRequest(
                f"request_id {request_id} is in use on this stream", field="request_id"
            )
            self._answer_failure(request_id, error)
        elif message.HasField("structured_output"):
            task = asyncio.create_task(self._start_constrained(message))
            self._compiling[request_id] = task
            task.add_done_callback(lambda _: self._compiling.pop(request_id, None))
        else:
            self._submit(message, None)

    async def _start_constrained(self, message: verify_service_pb2.Start) -> None:
        try:
            constraint = await self._compile_constraint(message)
        except PacelineError as error:
            self._answer_failure(message.request_id, error)
        except asyncio.CancelledError:
            self._answer_failure(message.request_id, Cancelled("cancelled while preparing"))
        else:
            self._submit(message, constraint)

    def _submit(self, message: verify_service_pb2.Start, constraint: Constraint | None) -> None:
        try:
            if self._router.is_closed:
                raise Unavailable("the verifier is draining", retry_after_seconds=0.5)
            sequence_id = self._router.next_id()
            request = request_from_proto(
                message,
                sequence_id=sequence_id,
                info=self._info,
                defaults=self._defaults,
                now=time.monotonic(),
                constraint=constraint,
            )
            self._router.submit(request, drafting_from_proto(message.drafting), self)
            trace = received_context(message.traceparent, message.tracestate)
            self._router.traces.opened(sequence_id, message.client_request_id, trace, "Attach")
        except PacelineError as error:
            self._answer_failure(message.request_id, error)
            return
        self._sequence_of[message.request_id] = sequence_id
        self._request_of[sequence_id] = message.request_id

    def _abandon(self) -> None:
        # The writer may be stuck in flow control; the sequences and what they said are not kept.
        self._is_abandoned = True
        self._router.detach(self)
        self._message.Clear()
        self._num_results = 0

    def _cancel(self, request_id: int) -> None:
        if request_id in self._compiling:
            self._compiling[request_id].cancel()
        sequence_id = self._sequence_of.get(request_id)
        if sequence_id is not None:
            self._router.cancel(sequence_id)

    def _answer_failure(self, request_id: int, error: PacelineError) -> None:
        self._message.failures.append(failure_to_proto(SequenceFailure(0, error), request_id))
        self._num_results += 1
        self._ready.set()

    def _forget(self, sequence_id: int) -> None:
        request_id = self._request_of.pop(sequence_id)
        self._sequence_of.pop(request_id, None)


class VerifySession:
    """The state of one ``Verify`` call: a sequence in lockstep with its client's proposals."""

    def __init__(self) -> None:
        self._outcomes: asyncio.Queue[SequenceStep | PacelineError] = asyncio.Queue()

    def put_step(self, step: SequenceStep) -> None:
        """Take a verdict."""
        self._outcomes.put_nowait(step)

    def put_failure(self, failure: SequenceFailure) -> None:
        """Take the end of the sequence."""
        self._outcomes.put_nowait(failure.error)

    def flush(self, load: Load) -> None:
        """Do nothing; verdicts are sent one by one."""
        del load

    async def verdict(self) -> SequenceStep:
        """Return the next verdict; raises the error that ended the sequence."""
        outcome = await self._outcomes.get()
        if isinstance(outcome, PacelineError):
            raise outcome
        return outcome
