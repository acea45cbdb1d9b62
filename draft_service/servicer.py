"""The DraftService on the wire: decodes, delegates to a stream's link, encodes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc.aio
import structlog

from draft_service.codec import answer_to_proto, limits_from_proto, spec_from_proto
from draft_service.link import DraftLink
from draft_service.proposing import Proposer
from draft_service.session_traces import SessionTraces
from draft_service.sessions import SessionTable
from paceline.errors import EngineFailed, InvalidRequest, PacelineError, Unavailable
from paceline.status import rich_status
from paceline.trace_context import received_context
from paceline.tracing import Tracer
from paceline.unreadable import readable
from paceline.v1.draft_service_pb2 import (
    DraftRequest,
    DraftResponse,
    GetCapabilitiesRequest,
    GetCapabilitiesResponse,
)
from paceline.v1.draft_service_pb2_grpc import DraftServiceServicer

_OPENING_SECONDS: Final = 0.0005
"""So long sessions are opened before those that are open are answered: indexing a text takes up to
milliseconds, and a step of a small target hardly more."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()

DraftContext: TypeAlias = grpc.aio.ServicerContext[DraftRequest, DraftResponse]


@dataclass(frozen=True, slots=True)
class _Stream:
    """One verifier's stream and the task that reads it; the task raises what is wrong with it."""

    link: DraftLink
    traces: SessionTraces
    reader: asyncio.Task[None]


class DraftServicer(DraftServiceServicer):
    """Serves any number of verifiers, each with its own stream, from one table of sessions."""

    def __init__(
        self,
        capabilities: GetCapabilitiesResponse,
        table: SessionTable,
        proposer: Proposer,
        tracer: Tracer | None = None,
    ) -> None:
        self._capabilities = capabilities
        self._table = table
        self._proposer = proposer
        self._tracer = tracer
        self._links: set[DraftLink] = set()
        self._stream_ids = itertools.count(1)
        self._is_draining = False
        self.is_warm = False
        """Until then verifiers are told to come back: a stream that waits looks like a pool that
        drafts nothing."""
        self.problems: Counter[str] = Counter()
        """Problems of streams that have ended, by kind."""
        self._ended_counts: Counter[str] = Counter()

    @property
    def num_streams(self) -> int:
        """Streams that are open."""
        return len(self._links)

    def ahead_counts(self) -> Counter[str]:
        """Return how far ahead of commits the trees of all streams were; see ``SentTrees``."""
        return sum((link.sent.counts for link in self._links), self._ended_counts.copy())

    async def GetCapabilities(
        self,
        request: GetCapabilitiesRequest,
        context: grpc.aio.ServicerContext[GetCapabilitiesRequest, GetCapabilitiesResponse],
    ) -> GetCapabilitiesResponse:
        """Describe the drafter and the limits of its sessions, once it can draft."""
        if not self.is_warm:
            await context.abort_with_status(rich_status(_warming_up()))
        return self._capabilities

    async def Draft(
        self, request_iterator: AsyncIterable[DraftRequest], context: DraftContext
    ) -> AsyncIterator[DraftResponse]:
        """Answer a verifier's messages until its stream ends, then free its sessions."""
        try:
            if not self.is_warm:
                raise _warming_up()
            async with self._stream(request_iterator, context.peer()) as stream:
                async for answer in stream.link.answers():
                    stream.traces.proposed(answer.drafts)
                    yield answer_to_proto(answer)
                await stream.reader
        except PacelineError as error:
            await context.abort_with_status(rich_status(error))

    def drain(self) -> None:
        """Tell all verifiers, present and to come, that the service is about to stop."""
        self._is_draining = True
        for link in self._links:
            link.drain()

    @asynccontextmanager
    async def _stream(
        self, requests: AsyncIterable[DraftRequest], peer: str
    ) -> AsyncIterator[_Stream]:
        stream_id = next(self._stream_ids)
        link = DraftLink(stream_id, self._table, self._proposer)
        self._links.add(link)
        if self._is_draining:
            link.drain()
        log.info("stream_opened", stream_id=stream_id, peer=peer)
        traces = SessionTraces(stream_id, self._tracer, self._capabilities.max_sessions)
        reader = asyncio.create_task(_read(requests, link, traces))
        try:
            yield _Stream(link, traces, reader)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._links.discard(link)
            self.problems.update(link.problems)
            self._ended_counts.update(link.sent.counts)
            link.free()
            traces.free()
            log.info("stream_closed", stream_id=stream_id, problems=dict(link.problems))


def _warming_up() -> Unavailable:
    return Unavailable("the drafter is warming up")


async def _read(
    requests: AsyncIterable[DraftRequest], link: DraftLink, traces: SessionTraces
) -> None:
    try:
        async for request in readable(requests):
            await _apply(request, link, traces)
    except InvalidRequest as error:
        log.warning("stream_unreadable", reason=error.reason)
        raise
    except Exception as error:
        log.error("stream_failed", exc_info=error)
        raise EngineFailed("the draft service met a fault of its own") from None
    finally:
        link.end()


async def _apply(request: DraftRequest, link: DraftLink, traces: SessionTraces) -> None:
    until = time.monotonic() + _OPENING_SECONDS
    for opened in request.opens:
        trace = received_context(opened.traceparent, opened.tracestate)
        traces.opened(opened.session_id, opened.client_request_id, trace)
        link.open(opened.session_id, spec_from_proto(opened), limits_from_proto(opened))
        if time.monotonic() > until:
            # A verifier that is back opens all its sessions; the first are answered meanwhile.
            await asyncio.sleep(0)
            until = time.monotonic() + _OPENING_SECONDS
    for commit in request.commits:
        traces.committed(commit.session_id)
        link.commit(commit.session_id, commit.base_len, tuple(commit.token_ids), commit.features)
    for closed in request.closes:
        link.close(closed.session_id)
        traces.closed(closed.session_id)
