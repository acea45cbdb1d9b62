"""How a Paceline server starts, tells its health, drains and stops. It knows no service."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.address import MAX_PORT
from paceline.channels import SERVER_OPTIONS
from paceline.errors import ConfigurationError
from paceline.tls import ServerTls, server_credentials

READINESS = "readiness"
LIVENESS = "liveness"

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Server:
    """
    A ``grpc.aio`` server with health and reflection.

    Health names: "" and "liveness" say that the process lives; "readiness" and the full service
    names say that it can serve now. They start as NOT_SERVING until ``set_ready(True)``.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        *,
        with_reflection: bool = True,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS, interceptors=tuple(interceptors))
        self._names = tuple(service_names)
        self._health = health.aio.HealthServicer()
        self.is_ready = False
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if with_reflection:
            reflection.enable_server_reflection(
                (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc
            )

    def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """
        Bind ``host:port``, in plaintext without ``tls``, and return the port.

        Raises ``ConfigurationError`` if it is taken or the certificates cannot be used.
        """
        credentials = server_credentials(tls) if tls else None
        try:
            _probe(address)
            port = (
                self.grpc.add_secure_port(address, credentials)
                if credentials
                else self.grpc.add_insecure_port(address)
            )
        except (OSError, RuntimeError):
            port = 0
        if port == 0:
            raise ConfigurationError(
                f"cannot listen on {address}: the port is in use or the address is not local; "
                "choose another with --listen"
            )
        return int(port)

    async def start(self) -> None:
        """Start answering; ``listen`` comes first."""
        await self.grpc.start()
        await self._set("", health_pb2.HealthCheckResponse.SERVING)
        await self._set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Say whether new calls can be served."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if ready
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        self.is_ready = ready
        for name in (READINESS, *self._names):
            await self._set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, give running ones ``grace_seconds``, then end them."""
        await self.grpc.stop(grace_seconds)

    async def _set(self, name: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        await self._health.set(name, status)


def settle_heap() -> None:
    """
    Collect garbage, and leave what lives now out of all later collections.

    For a process whose start is over: modules and a model are some hundred thousand objects that
    live as long as it does, and a full collection that visits them stops every stream for up to a
    third of a second.
    """
    gc.collect()
    gc.freeze()
    log.info("heap_settled", num_objects=gc.get_freeze_count())


def _probe(address: str) -> None:
    """Raise ``OSError`` if the address cannot be bound; gRPC would log lines of its own first."""
    if address.startswith("unix:"):
        return
    host, _, port = address.rpartition(":")
    # The resolver would take larger numbers modulo 65536.
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise OSError(f"no port in {address}")
    family, kind, protocol, _, where = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)


@asynccontextmanager
async def termination_signal() -> AsyncIterator[asyncio.Event]:
    """Yield an event that SIGTERM or SIGINT sets; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    received = asyncio.Event()

    def on_signal() -> None:
        if received.is_set():
            log.warning("second_signal_exiting")
            os._exit(1)
        received.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield received
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
