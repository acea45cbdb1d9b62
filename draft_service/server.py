"""Puts a draft service together, and its life from listening to having drained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

import structlog

from draft_service.codec import capabilities_to_proto
from draft_service.drafter import Drafter
from draft_service.metrics import DraftMetrics, DraftState, MeasuredProposer
from draft_service.proposing import proposer_for
from draft_service.registry import create_drafter
from draft_service.servicer import DraftServicer
from draft_service.sessions import SessionTable, TableLimits
from draft_service.settings import DraftSettings
from paceline.admin import AdminServer
from paceline.metrics import service_registry
from paceline.serving import Server, settle_heap, termination_signal
from paceline.tracing import check_tracing, open_tracer
from paceline.unreadable import ReadableCalls
from paceline.v1 import draft_service_pb2
from paceline.v1.draft_service_pb2_grpc import add_DraftServiceServicer_to_server

SERVICE_NAME = draft_service_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class DraftServer:
    """A draft service that listens; ready from the start, its drafter being warm."""

    def __init__(self, server: Server, servicer: DraftServicer, address: str) -> None:
        self._server = server
        self._servicer = servicer
        self.address = address

    async def drain(self, *, propagation_delay_seconds: float, drain_seconds: float) -> None:
        """
        Stop for good: refuse new streams, tell the verifiers, and serve the open streams on.

        Returns when all streams have ended, at the latest ``drain_seconds`` after telling.
        """
        await self._server.set_ready(False)
        await asyncio.sleep(propagation_delay_seconds)
        self._servicer.drain()
        await self._server.stop(drain_seconds)


@asynccontextmanager
async def running_server(
    settings: DraftSettings, drafter: Drafter, when_warm: Callable[[], None] = lambda: None
) -> AsyncIterator[DraftServer]:
    """
    Serve a drafter as the settings say; ``when_warm`` is called before it says that it is ready.

    Raises ``ConfigurationError`` if it cannot listen.
    """
    limits = _table_limits(settings)
    table, registry = SessionTable(drafter, limits), service_registry("draft")
    name = settings.name or drafter.info.kind
    state = DraftState(
        num_sessions=lambda: len(table),
        num_evicted=lambda: table.num_evicted,
        num_streams=lambda: servicer.num_streams,
        problems=lambda: servicer.problems,
        ahead=lambda: servicer.ahead_counts(),
    )
    proposer = MeasuredProposer(proposer_for(drafter), DraftMetrics(registry, name, state))
    tracer = open_tracer("draft", settings.otlp_endpoint, settings.trace_ratio)
    servicer = DraftServicer(
        capabilities_to_proto(name, _version(), drafter.info, limits), table, proposer, tracer
    )
    server = Server(
        [SERVICE_NAME], with_reflection=settings.reflection, interceptors=(ReadableCalls(),)
    )
    add_DraftServiceServicer_to_server(servicer, server.grpc)
    port = server.listen(settings.listen, settings.server_tls)
    await server.start()
    address = f"{settings.listen.rpartition(':')[0]}:{port}"
    log.info("listening", address=address, drafter=drafter.info.kind)
    admin = AdminServer(registry, lambda: server.is_ready)
    try:
        if settings.admin_listen:
            await admin.start(settings.admin_listen)
        await asyncio.to_thread(_warm_up, drafter, when_warm)
        servicer.is_warm = True
        await server.set_ready(True)
        log.info("ready", address=address)
        yield DraftServer(server, servicer, address)
    finally:
        await server.stop(0)
        await proposer.aclose()
        await admin.aclose()
        if tracer is not None:
            await tracer.aclose()


async def serve(settings: DraftSettings) -> None:
    """Serve until a signal comes, then drain."""
    check_tracing(settings.otlp_endpoint)
    async with (
        termination_signal() as terminated,
        running_server(settings, create_drafter(settings), settle_heap) as server,
    ):
        await terminated.wait()
        log.info("draining", drain_seconds=settings.drain_seconds)
        await server.drain(
            propagation_delay_seconds=settings.propagation_delay_seconds,
            drain_seconds=settings.drain_seconds,
        )
    log.info("stopped")


def _warm_up(drafter: Drafter, when_warm: Callable[[], None]) -> None:
    drafter.warm_up()
    when_warm()


def _table_limits(settings: DraftSettings) -> TableLimits:
    return TableLimits(
        max_sessions=settings.max_sessions,
        max_session_tokens=settings.max_session_tokens,
        idle_session_seconds=settings.idle_session_seconds,
        busy_session_seconds=settings.busy_session_seconds,
        max_draft_tokens=settings.max_draft_tokens,
        max_tree_depth=settings.max_tree_depth,
    )


def _version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"
