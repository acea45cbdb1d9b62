"""The admin port answers what Prometheus and a kubelet ask, and survives everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, Gauge

from paceline import admin
from paceline.admin import AdminServer
from paceline.errors import ConfigurationError

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def serving(*, is_ready: bool = True) -> AsyncIterator[int]:
    """Serve one gauge on a free port."""
    registry = CollectorRegistry()
    Gauge("paceline_example", "An example.", registry=registry).set(7)
    server = AdminServer(registry, lambda: is_ready)
    port = await server.start("127.0.0.1:0")
    try:
        yield port
    finally:
        await server.aclose()


async def asked(port: int, request: bytes) -> str:
    """Return the whole answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer.decode()


def get(path: str, *headers: str) -> bytes:
    """Return a request."""
    lines = [f"GET {path} HTTP/1.1", "Host: test", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def test_metrics_are_in_the_text_format() -> None:
    async with serving() as port:
        answer = await asked(port, get("/metrics"))

    assert answer.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
    assert "paceline_example 7.0" in answer


async def test_openmetrics_is_served_on_request() -> None:
    async with serving() as port:
        answer = await asked(port, get("/metrics", "accept: application/openmetrics-text"))

    assert "application/openmetrics-text" in answer
    assert answer.endswith("# EOF\n")


@pytest.mark.parametrize(("is_ready", "status"), [(True, "200"), (False, "503")])
async def test_readiness_is_the_servers_and_liveness_is_not(is_ready: bool, status: str) -> None:
    async with serving(is_ready=is_ready) as port:
        readiness = await asked(port, get("/readiness"))
        liveness = [await asked(port, get(path)) for path in ("/liveness", "/healthz")]

    assert readiness.startswith(f"HTTP/1.1 {status}")
    assert all(answer.startswith("HTTP/1.1 200") for answer in liveness)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/"), "404"),
        (get("/metrics/../secret"), "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\r\n\r\n", "405"),
        (b"\xff\xfe\x00\r\n\r\n", "405"),
    ],
)
async def test_everything_else_is_refused(request_bytes: bytes, status: str) -> None:
    async with serving() as port:
        assert (await asked(port, request_bytes)).startswith(f"HTTP/1.1 {status}")


async def test_an_endless_head_and_a_silent_client_are_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.1)
    async with serving() as port:
        endless = await asked(port, b"x" * (4 * admin.MAX_REQUEST_BYTES))
        silent = await asked(port, b"GET /metrics")
        after = await asked(port, get("/metrics"))

    assert (endless, silent) == ("", "")
    assert after.startswith("HTTP/1.1 200")


async def test_a_taken_port_is_a_configuration_error() -> None:
    async with serving() as port:
        with pytest.raises(ConfigurationError, match="--admin-listen"):
            await AdminServer(CollectorRegistry(), lambda: True).start(f"127.0.0.1:{port}")


async def test_an_address_without_a_port_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        await AdminServer(CollectorRegistry(), lambda: True).start("localhost")


async def test_a_port_that_there_is_not_is_a_configuration_error() -> None:
    """libuv would take it modulo 65536."""
    with pytest.raises(ConfigurationError, match="host:port"):
        await AdminServer(CollectorRegistry(), lambda: True).start("127.0.0.1:99999")


async def test_connections_that_ask_nothing_end_with_the_server() -> None:
    """Left to the end of the loop, asyncio would report each as a fault."""
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metr")
        await asyncio.sleep(0.05)
    others = asyncio.all_tasks() - {asyncio.current_task()}

    assert await reader.read() == b""
    writer.close()
    assert not others
    assert not faults
