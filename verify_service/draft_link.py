"""
The stream to one draft pool: commits out, trees in, one message per step and direction.

Whatever the drafter does (late, wrong, hung, dead) ends here as a dropped tree or a pool that is
down; the engine never waits for this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import grpc.aio
import structlog

from paceline.channels import open_link
from paceline.codec import tree_from_proto
from paceline.errors import ConfigurationError, InvalidTree, Mismatch
from paceline.tls import DialTls
from paceline.tree import TokenTree
from paceline.v1 import draft_service_pb2, draft_service_pb2_grpc, types_pb2
from verify_service.codec import commit_to_proto, fallback_from_proto, open_to_proto
from verify_service.draft_distributions import distributions_from_proto
from verify_service.draft_outbox import DraftOutbox
from verify_service.drafter_check import check_drafter
from verify_service.engine.drawn_children import DrawnChildren
from verify_service.engine.sampling import Fallback
from verify_service.engine.steps import (
    Command,
    PoolDown,
    PoolUp,
    SessionClosed,
    SessionCommitted,
    SessionEvent,
    SessionLost,
    SessionOpened,
    SessionRefused,
    TreeFact,
)
from verify_service.sequence_traces import Origin
from verify_service.targets.target import TargetInfo

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_PENDING_EVENTS = 20_000


class _Retry(Exception):
    def __init__(self, cause: Fallback, detail: str, seconds: float) -> None:
        super().__init__(detail)
        self.cause, self.detail, self.seconds = cause, detail, seconds


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds on what a drafter may cost."""

    max_tree_nodes: int = 256
    max_tree_depth: int = 128
    connect_seconds: float = 2.0
    write_seconds: float = 2.0
    heartbeat_seconds: float = 5.0
    """How often a silent drafter is asked for a sign of life."""
    max_invalid_trees: int = 64
    """Invalid trees on one stream before the pool is demoted."""
    demotion_seconds: float = 30.0
    backoff_seconds: float = 0.1
    max_backoff_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Whether a pool can be used now, and what serves it."""

    name: str
    cause: Fallback | None = Fallback.UNREACHABLE
    detail: str = "not connected yet"
    drafter: str = ""
    version: str = ""


class DraftLink:
    """Keeps one pool's stream alive and translates between it and the engine."""

    def __init__(
        self,
        pool: str,
        address: str,
        info: TargetInfo,
        send: Callable[[Command], None],
        limits: LinkLimits | None = None,
        *,
        tls: DialTls | None = None,
        is_trusted: bool = False,
    ) -> None:
        self.status = PoolStatus(pool)
        self.counts: Counter[str] = Counter()
        """Messages, trees and dropped trees by cause."""
        self._pool = pool
        self._address = address
        self._info = info
        self._send = send
        self._limits = limits or LinkLimits()
        self._tls = tls
        self._is_trusted = is_trusted
        """Its draft distributions are believed (rule REJECTION)."""
        self._outbox = DraftOutbox()
        self._has_pending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_round_trip: Callable[[str, float], None] = _ignore
        """Called with the pool and the seconds from a commit to the tree right behind it."""
        self.origin_of: Callable[[int], Origin] = _unknown
        """Tells whose request a sequence is, for the drafter's logs and spans."""
        self._awaited: dict[int, tuple[int, float]] = {}
        self._draining = asyncio.Event()
        self._unopened: set[int] = set()
        """Sequences that the drafter was not told of because it drains."""

    def start(self) -> None:
        """Start connecting."""
        self._task = asyncio.create_task(self._run(), name=f"draft-link-{self._pool}")

    async def aclose(self) -> None:
        """Close the stream for good."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def publish(self, events: Iterable[SessionEvent]) -> None:
        """Add one step's events for this pool to the next message."""
        if self.status.cause is not None:
            return
        for event in events:
            if self._is_withheld(event):
                continue
            match event:
                case SessionOpened():
                    opened = open_to_proto(
                        event, self._limits.max_tree_depth, may_draw=self._is_trusted
                    )
                    origin = self.origin_of(event.request.sequence_id)
                    opened.traceparent = origin.trace.traceparent
                    opened.tracestate = origin.trace.tracestate
                    opened.client_request_id = origin.request_id
                    self._outbox.open(opened)
                    self._await_tree(event.request.sequence_id, len(event.committed_token_ids))
                case SessionCommitted():
                    self._outbox.commit(commit_to_proto(event))
                    self._await_tree(event.sequence_id, event.base_len + len(event.token_ids))
                case SessionClosed():
                    self._outbox.close(event.sequence_id)
                    self._awaited.pop(event.sequence_id, None)
        if self._outbox.num_events:
            self._has_pending.set()

    def _is_withheld(self, event: SessionEvent) -> bool:
        """Return whether a draining drafter need not hear of it: it takes no new sessions."""
        match event:
            case SessionOpened() if self._draining.is_set():
                self._unopened.add(event.request.sequence_id)
                return True
            case SessionCommitted():
                return event.sequence_id in self._unopened
            case SessionClosed() if event.sequence_id in self._unopened:
                self._unopened.discard(event.sequence_id)
                return True
            case _:
                return False

    async def _run(self) -> None:
        backoff = self._limits.backoff_seconds
        while True:
            started = time.monotonic()
            try:
                await self._serve_once()
                raise _Retry(Fallback.UNREACHABLE, "the drafter closed the stream", backoff)
            except _Retry as retry:
                cause, detail, pause = retry.cause, retry.detail, max(retry.seconds, backoff)
            except grpc.aio.AioRpcError as error:
                cause, pause = Fallback.UNREACHABLE, backoff
                detail = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                cause, detail, pause = Fallback.UNREACHABLE, "the drafter hangs", backoff
            except asyncio.InvalidStateError:
                # A write met a stream that had ended before its reader could say so.
                cause, pause = Fallback.UNREACHABLE, backoff
                detail = "the drafter closed the stream"
            self._set_down(cause, detail)
            # A stream that lasted was fine; one that ended at once is tried ever more rarely.
            lasted = time.monotonic() - started > self._limits.max_backoff_seconds
            backoff = (
                self._limits.backoff_seconds
                if lasted
                else min(backoff * 2, self._limits.max_backoff_seconds)
            )
            await asyncio.sleep(pause)

    async def _serve_once(self) -> None:
        """Serve one connection, and after a drain its successors, until one ends by itself."""
        channel: grpc.aio.Channel | None = await self._connect()
        pause = self._limits.backoff_seconds
        while channel is not None:
            channel = await self._serve(channel, pause)
            pause = min(2 * pause, self._limits.max_backoff_seconds)

    async def _connect(self) -> grpc.aio.Channel:
        channel = self._channel()
        try:
            await self._handshake(draft_service_pb2_grpc.DraftServiceStub(channel))
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _serve(self, channel: grpc.aio.Channel, pause: float) -> grpc.aio.Channel | None:
        """Serve one stream to its end; return the channel to go on with if it was left early."""
        stub = draft_service_pb2_grpc.DraftServiceStub(channel)
        call = stub.Draft()
        self._begin_stream()
        successor = asyncio.create_task(self._successor(pause))
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._watch(stub)),
        ]
        following: grpc.aio.Channel | None = None
        try:
            await asyncio.wait((successor, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            following = successor.result() if successor.done() else None
            return following
        finally:
            call.cancel()
            for each in (successor, *tasks):
                each.cancel()
            await asyncio.gather(successor, *tasks, return_exceptions=True)
            if following is None and not successor.cancelled() and not successor.exception():
                await successor.result().close()
            await channel.close()

    def _begin_stream(self) -> None:
        self._outbox.take()
        self._awaited.clear()
        self._unopened.clear()
        self._draining.clear()
        self._send(PoolUp(self._pool))

    async def _successor(self, pause: float) -> grpc.aio.Channel:
        """Once the drafter drains, find another replica; running sessions stay until then."""
        await self._draining.wait()
        log.info("draft_pool_draining", pool=self._pool)
        while True:
            # The drafter closes its port only after telling; sooner, it would be found again.
            await asyncio.sleep(pause)
            try:
                return await self._connect()
            except (grpc.aio.AioRpcError, _Retry) as error:
                log.debug("draft_pool_has_no_successor", pool=self._pool, cause=str(error))

    def _channel(self) -> grpc.aio.Channel:
        try:
            return open_link(self._address, self._tls)
        except ConfigurationError as error:
            pause = self._limits.max_backoff_seconds
            raise _Retry(Fallback.UNREACHABLE, error.message, pause) from None

    async def _handshake(self, stub: draft_service_pb2_grpc.DraftServiceAsyncStub) -> None:
        answer = await stub.GetCapabilities(
            draft_service_pb2.GetCapabilitiesRequest(), timeout=self._limits.connect_seconds
        )
        try:
            check_drafter(self._pool, answer, self._info)
        except Mismatch as error:
            raise _Retry(Fallback.MISMATCH, error.message, self._limits.demotion_seconds) from None
        self.status = PoolStatus(self._pool, None, "", answer.drafter, answer.version)

    async def _write(
        self,
        call: grpc.aio.StreamStreamCall[
            draft_service_pb2.DraftRequest, draft_service_pb2.DraftResponse
        ],
    ) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            if self._outbox.num_events > MAX_PENDING_EVENTS:
                raise TimeoutError
            message = self._outbox.take()
            async with asyncio.timeout(self._limits.write_seconds):
                await call.write(message)
            self.counts["messages_sent"] += 1

    async def _read(
        self,
        call: grpc.aio.StreamStreamCall[
            draft_service_pb2.DraftRequest, draft_service_pb2.DraftResponse
        ],
    ) -> None:
        async for message in call:
            self.counts["messages_received"] += 1
            if message.draining:
                self._draining.set()
            for proposal in message.proposals:
                self._take(proposal)
            for session_id in message.unknown_session_ids:
                self.counts["sessions_lost"] += 1
                self._send(SessionLost(self._pool, session_id))
            for refusal in message.refusals:
                cause = fallback_from_proto(refusal.cause) or Fallback.UNREACHABLE
                self._send(SessionRefused(self._pool, refusal.session_id, cause))

    def _take(self, proposal: draft_service_pb2.Proposal) -> None:
        limits = self._limits
        try:
            # Sizes come first: building a huge tree only to refuse it would be the attack.
            if len(proposal.tree.token_ids) > limits.max_tree_nodes:
                raise InvalidTree("too_many_nodes", f"{len(proposal.tree.token_ids)} nodes")
            tree = tree_from_proto(proposal.tree)
            tree.check_limits(
                max_nodes=limits.max_tree_nodes,
                max_depth=limits.max_tree_depth,
                vocab_size=self._info.num_token_ids,
            )
        except InvalidTree as error:
            self._refuse(error)
            return
        self.counts["trees"] += 1
        self._note_arrival(proposal.session_id, proposal.base_len)
        drawn = self._drawn(proposal.tree, tree)
        self._send(TreeFact(proposal.session_id, proposal.base_len, tree, self._pool, drawn))

    def _drawn(self, message: types_pb2.TokenTree, tree: TokenTree) -> Mapping[int, DrawnChildren]:
        if not self._is_trusted:
            return {}
        read = distributions_from_proto(message, tree, self._info.num_token_ids)
        for cause, number in read.dropped.items():
            self.counts[f"invalid_{cause}"] += number
        return read.by_node

    def _await_tree(self, session_id: int, committed_len: int) -> None:
        self._awaited[session_id] = (committed_len, time.monotonic())

    def _note_arrival(self, session_id: int, base_len: int) -> None:
        awaited = self._awaited.get(session_id)
        if awaited is None:
            return
        if base_len < awaited[0]:
            self.counts["late_trees"] += 1
            return
        del self._awaited[session_id]
        self.on_round_trip(self._pool, time.monotonic() - awaited[1])

    def _refuse(self, error: InvalidTree) -> None:
        self.counts[f"invalid_{error.cause}"] += 1
        self.counts["invalid"] += 1
        if self.counts[f"invalid_{error.cause}"] == 1:
            log.warning("invalid_tree", pool=self._pool, cause=error.cause, detail=error.message)
        if self.counts["invalid"] % self._limits.max_invalid_trees == 0:
            raise _Retry(
                Fallback.DEMOTED,
                f"{self._limits.max_invalid_trees} invalid trees, last: {error.message}",
                self._limits.demotion_seconds,
            )

    async def _watch(self, stub: draft_service_pb2_grpc.DraftServiceAsyncStub) -> None:
        while True:
            await asyncio.sleep(self._limits.heartbeat_seconds)
            await stub.GetCapabilities(
                draft_service_pb2.GetCapabilitiesRequest(), timeout=self._limits.connect_seconds
            )

    def _set_down(self, cause: Fallback, detail: str) -> None:
        if self.status.cause is None or self.status.detail != detail:
            log.warning("draft_link_down", pool=self._pool, cause=cause.name, detail=detail)
        if self.status.cause != cause:
            self._send(PoolDown(self._pool, cause))
        self.status = PoolStatus(self._pool, cause, detail)


def _ignore(pool: str, seconds: float) -> None:
    pass


def _unknown(sequence_id: int) -> Origin:
    del sequence_id
    return Origin()
