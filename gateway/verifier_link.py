"""The one stream to one verifier, shared by all its sequences. It knows no text and no clients."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio
import structlog

from gateway.counters import Counters
from gateway.generation import DraftingChoice, ModelInfo, SequenceRequest, Step, VerifierLoad
from gateway.load_reports import LoadReports
from gateway.outbox import Outbox
from gateway.verifier_codec import (
    failure_from_proto,
    model_info_from_proto,
    step_from_proto,
)
from paceline.channels import open_link
from paceline.errors import EngineFailed, Mismatch, PacelineError, Unavailable
from paceline.status import error_from_rpc
from paceline.tls import DialTls
from paceline.v1.verify_service_pb2 import AttachRequest, AttachResponse, GetModelInfoRequest
from paceline.v1.verify_service_pb2_grpc import VerifyServiceStub

if TYPE_CHECKING:
    from paceline.v1.verify_service_pb2_grpc import VerifyServiceAsyncStub

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class StepSink(Protocol):
    """
    Where a sequence's results go. Calls are synchronous and must not block: a slow client is the
    sink's affair, never the link's.
    """

    def on_step(self, step: Step) -> None:
        """Take in a step; the last one has a finish reason."""

    def on_failure(self, error: PacelineError) -> None:
        """Take in the early end; ``Unavailable`` when another verifier may go on."""


class LinkObserver(Protocol):
    """Who is told about a verifier."""

    def on_change(self, link: VerifierLink) -> None:
        """Called when the verifier can or cannot be used any more, or describes itself anew."""

    def on_load(self, link: VerifierLink) -> None:
        """Called after each load report."""


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """How patient a link is."""

    handshake_seconds: float = 5.0
    refresh_seconds: float = 1.0
    """Between two looks at the verifier's description: draft pools come and go."""
    max_missed_refreshes: int = 3
    """A verifier that does not answer this often in a row is given up."""
    min_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 2.0
    refused_retry_seconds: float = 5.0


class VerifierLink:
    """
    Connects to one verifier, again and again, and multiplexes sequences over one stream.

    When the stream ends, every open sequence fails with ``Unavailable``. A verifier with another
    tokenizer or protocol is refused and looked at again later.
    """

    def __init__(
        self,
        address: str,
        *,
        tokenizer_fingerprint: str,
        observer: LinkObserver,
        counters: Counters,
        times: LinkTimes,
        tls: DialTls | None = None,
    ) -> None:
        self.address = address
        self.info: ModelInfo | None = None
        self.is_draining = False
        self.is_retired = False
        """The settings do not name the verifier any more."""
        self.problem: PacelineError | None = Unavailable(f"{address}: not connected yet")
        self._fingerprint = tokenizer_fingerprint
        self._observer = observer
        self._counters = counters
        self._times = times
        self._tls = tls
        self._numbers = itertools.count(1)
        self._outbox = Outbox()
        self.loads = LoadReports(lambda: observer.on_load(self))
        self._sinks: dict[int, StepSink] = {}

    @property
    def load(self) -> VerifierLoad:
        """How busy the verifier is, by its last report."""
        return self.loads.current

    @property
    def is_usable(self) -> bool:
        """Whether new sequences can be opened."""
        return self.problem is None and not self.is_draining and not self.is_retired

    @property
    def num_sequences(self) -> int:
        """Sequences of this gateway that are open here."""
        return len(self._sinks)

    def open(self, request: SequenceRequest, sink: StepSink) -> int:
        """Start a sequence and return its number on this link; ``is_usable`` comes first."""
        number = next(self._numbers)
        self._sinks[number] = sink
        self._outbox.start(number, request, asyncio.get_running_loop().time())
        return number

    def set_drafting(self, number: int, choice: DraftingChoice) -> None:
        """Change a running sequence's drafts."""
        if number in self._sinks:
            self._outbox.set_drafting(number, choice)

    def cancel(self, number: int) -> None:
        """End a sequence; nothing more is heard of it."""
        if self._sinks.pop(number, None) is not None:
            self._outbox.cancel(number)

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        backoff = self._times.min_backoff_seconds
        while True:
            was_connected = await self._connect_once()
            if was_connected:
                backoff = self._times.min_backoff_seconds
            is_refused = isinstance(self.problem, Mismatch)
            pause = self._times.refused_retry_seconds if is_refused else backoff
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
            backoff = min(2 * backoff, self._times.max_backoff_seconds)

    async def _connect_once(self) -> bool:
        """Serve one connection to its end; return whether it came about."""
        was_connected = False
        problem: PacelineError = Unavailable(f"{self.address}: the verifier ended the stream")
        try:
            # A channel of its own, so that each connection reads the certificate files anew.
            async with open_link(self.address, self._tls) as channel:
                stub: VerifyServiceAsyncStub = VerifyServiceStub(channel)
                info = await self._handshake(stub)
                was_connected = True
                await self._serve(stub, info)
        except grpc.aio.AioRpcError as error:
            problem = Unavailable(f"{self.address}: {_cause(error)}", reason="VERIFIER_LOST")
        except PacelineError as error:
            problem = error
        except asyncio.CancelledError:
            problem = self.problem = Unavailable(f"{self.address}: the gateway is stopping")
            raise
        finally:
            self._disconnect(problem, was_connected=was_connected)
        return was_connected

    async def _handshake(self, stub: VerifyServiceAsyncStub) -> ModelInfo:
        response = await stub.GetModelInfo(
            GetModelInfoRequest(), timeout=self._times.handshake_seconds, wait_for_ready=True
        )
        info = model_info_from_proto(response)
        self._check(info)
        return info

    def _check(self, info: ModelInfo) -> None:
        if not info.speaks_our_protocol:
            raise Mismatch(
                f"{self.address}: the verifier (version {info.version}) speaks another protocol; "
                "run gateway and verifier of the same release",
                reason="PROTOCOL_MISMATCH",
            )
        if info.tokenizer_fingerprint not in ("", self._fingerprint):
            raise Mismatch(
                f"{self.address}: the verifier's tokenizer ({info.tokenizer_fingerprint[:12]}) is "
                f"not the gateway's ({self._fingerprint[:12]}); give both the same --model folder",
                reason="TOKENIZER_MISMATCH",
            )

    async def _serve(self, stub: VerifyServiceAsyncStub, info: ModelInfo) -> None:
        self._outbox = Outbox()
        call = stub.Attach()
        self.info, self.problem, self.is_draining = info, None, False
        self.loads.reset()
        log.info("verifier_connected", verifier=self.address, model=info.model)
        self._observer.on_change(self)
        tasks = (
            asyncio.create_task(self._write(call, self._outbox)),
            asyncio.create_task(self._refresh(stub, call)),
        )
        try:
            async for response in call:
                self._receive(response)
                if self.is_draining and not self._sinks:
                    return
        except asyncio.CancelledError:
            # grpc.aio tells of a call that the refresher gave up as it does of a cancelled task.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unavailable(
                f"{self.address}: the verifier does not answer", reason="VERIFIER_LOST"
            ) from None
        finally:
            call.cancel()
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(
        self, call: grpc.aio.StreamStreamCall[AttachRequest, AttachResponse], outbox: Outbox
    ) -> None:
        """Send what is put until cancelled, or until the call has ended, as its reader tells."""
        async with aclosing(outbox.batches()) as batches:
            async for batch in batches:
                await call.write(batch)

    async def _refresh(
        self,
        stub: VerifyServiceAsyncStub,
        call: grpc.aio.StreamStreamCall[AttachRequest, AttachResponse],
    ) -> None:
        num_missed = 0
        while num_missed < self._times.max_missed_refreshes:
            await asyncio.sleep(self._times.refresh_seconds)
            try:
                response = await stub.GetModelInfo(
                    GetModelInfoRequest(), timeout=self._times.handshake_seconds
                )
                info = model_info_from_proto(response)
                self._check(info)
            except (grpc.aio.AioRpcError, PacelineError) as error:
                num_missed += 1
                log.warning("verifier_not_described", verifier=self.address, cause=str(error))
                continue
            num_missed = 0
            if info != self.info:
                self.info = info
                self._observer.on_change(self)
        call.cancel()

    def _receive(self, response: AttachResponse) -> None:
        if response.HasField("load"):
            self.loads.take(response.load)
        for result in response.results:
            is_last = bool(result.finish_reason)
            sink = self._sinks.get(result.request_id)
            if sink is not None:
                self._deliver(result.request_id, sink, step_from_proto(result), is_last=is_last)
        for failure in response.failures:
            failed = self._sinks.pop(failure.request_id, None)
            if failed is not None:
                failed.on_failure(failure_from_proto(failure))
        if response.draining and not self.is_draining:
            self.is_draining = True
            log.info("verifier_draining", verifier=self.address)
            self._observer.on_change(self)

    def _deliver(self, number: int, sink: StepSink, step: Step, *, is_last: bool) -> None:
        if is_last:
            del self._sinks[number]
        try:
            sink.on_step(step)
        except Exception:  # one sequence's fault must not end the stream for all
            log.exception("step_not_delivered", verifier=self.address)
            self.cancel(number)
            sink.on_failure(EngineFailed("the gateway could not process a step"))

    def _disconnect(self, problem: PacelineError, *, was_connected: bool) -> None:
        is_news = self.problem is None or str(problem) != str(self.problem)
        self.problem = problem
        self.loads.reset()
        if was_connected:
            self._counters.increment("verifier_links_lost", self.address)
        if isinstance(problem, Mismatch):
            self._counters.increment("verifiers_refused", self.address, problem.reason)
        if is_news:
            event = "verifier_lost" if was_connected else "verifier_unusable"
            log.warning(event, verifier=self.address, cause=problem.message)
        lost, self._sinks = self._sinks, {}
        for sink in lost.values():
            sink.on_failure(Unavailable(problem.message, reason="VERIFIER_LOST"))
        self._observer.on_change(self)


def _cause(error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "the verifier does not answer; is it running, and has it loaded its model?"
    return error_from_rpc(error).message
