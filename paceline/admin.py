"""
The admin port: metrics and health over plain HTTP, beside a gRPC port that may speak TLS.

It answers GET for ``/metrics``, ``/liveness``, ``/readiness`` and a service's own JSON reports, one
request per connection, and nothing else: it is no web server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from paceline.address import MAX_PORT
from paceline.errors import ConfigurationError

log: structlog.stdlib.BoundLogger = structlog.get_logger()

REQUEST_SECONDS: Final = 5.0
MAX_REQUEST_BYTES: Final = 16 * 1024
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN


class AdminServer:
    """Serves metrics and health until ``aclose``."""

    def __init__(
        self,
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        reports: Mapping[str, Callable[[], bytes]] | None = None,
    ) -> None:
        self._registry = registry
        self._is_ready = is_ready
        self._reports = dict(reports or {})
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, address: str) -> int:
        """Listen on ``host:port`` and return the port; raises ``ConfigurationError``."""
        host, _, port = address.rpartition(":")
        # libuv would take larger numbers modulo 65536.
        if not port.isdecimal() or int(port) > MAX_PORT:
            raise ConfigurationError(f"admin_listen is host:port, not {address!r}")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {address}: {error.strerror}; choose another with --admin-listen"
            ) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        log.info("admin_listening", address=f"{host}:{bound}")
        return bound

    async def aclose(self) -> None:
        """Stop listening and answering."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        # Not cancelled: asyncio reports a cancelled connection as a fault.
        for writer in self._connections.values():
            writer.transport.abort()
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections[task] = writer
            task.add_done_callback(self._connections.pop)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_encoded(self._answer(head.decode("latin-1"))))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _answer(self, head: str) -> _Answer:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        match path:
            case "/metrics":
                return self._metrics(_header(lines, "accept"))
            case "/liveness" | "/healthz":
                return _Answer(HTTPStatus.OK, b"alive\n")
            case "/readiness":
                ready = self._is_ready()
                status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
                return _Answer(status, b"ready\n" if ready else b"not ready\n")
            case _ if path in self._reports:
                return _Answer(HTTPStatus.OK, self._reports[path](), "application/json")
            case _:
                return _Answer(HTTPStatus.NOT_FOUND, self._paths())

    def _paths(self) -> bytes:
        paths = ("/metrics", "/liveness", "/readiness", *self._reports)
        return f"there is: {', '.join(paths)}\n".encode()

    def _metrics(self, accept: str) -> _Answer:
        encode, content_type = choose_encoder(accept)
        return _Answer(HTTPStatus.OK, encode(self._registry), content_type)


def _header(lines: list[str], name: str) -> str:
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _encoded(answer: _Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
