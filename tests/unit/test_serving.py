"""How a server starts, tells its health, and stops."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paceline.errors import ConfigurationError
from paceline.serving import Server, termination_signal
from paceline.v1 import verify_service_pb2_grpc
from tests.doubles.info_service import Context, Request, Response, add_info_service

pytestmark = pytest.mark.asyncio

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "paceline.v1.VerifyService"
NAMES = ("", "liveness", "readiness", SERVICE)


@asynccontextmanager
async def _started(server: Server) -> AsyncIterator[grpc.aio.Channel]:
    port = server.listen("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def _health(channel: grpc.aio.Channel) -> dict[str, int]:
    stub = health_pb2_grpc.HealthStub(channel)
    return {
        name: (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)).status
        for name in NAMES
    }


async def test_it_is_alive_at_once_and_ready_only_when_told() -> None:
    server = Server([SERVICE])
    async with _started(server) as channel:
        at_first = await _health(channel)
        await server.set_ready(True)
        when_ready = await _health(channel)
        await server.set_ready(False)
        while_draining = await _health(channel)

    waiting = {"": SERVING, "liveness": SERVING, "readiness": NOT_SERVING, SERVICE: NOT_SERVING}
    assert at_first == waiting
    assert when_ready == dict.fromkeys(NAMES, SERVING)
    assert while_draining == waiting


async def test_unknown_health_name_is_not_found() -> None:
    async with _started(Server([SERVICE])) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="nobody"), timeout=10
            )

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def _reflected_names(server: Server) -> set[str]:
    async with _started(server) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=10)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
    return {service.name for service in answer.list_services_response.service}


async def test_reflection_names_the_service_and_can_be_switched_off() -> None:
    assert SERVICE in await _reflected_names(Server([SERVICE]))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _reflected_names(Server([SERVICE], with_reflection=False))

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.1:port", "no.such.host.invalid:80", "127.0.0.1:99999"]
)
async def test_address_that_cannot_be_is_one_line_with_the_remedy(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Server([SERVICE]).listen(address)

    assert address in caught.value.message
    assert "--listen" in caught.value.message
    assert "\n" not in caught.value.message


async def test_port_in_use_is_a_configuration_error(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = Server([SERVICE]), Server([SERVICE])
    port = first.listen("127.0.0.1:0")
    await first.start()

    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
        second.listen(f"127.0.0.1:{port}")

    await first.stop(0)
    assert "bind" not in capfd.readouterr().err


async def test_stop_lets_running_calls_end_and_refuses_new_ones() -> None:
    server, entered, release = Server([SERVICE]), asyncio.Event(), asyncio.Event()

    async def slow(request: Request, context: Context) -> Response:
        entered.set()
        await release.wait()
        return Response(model="slow")

    add_info_service(slow, server.grpc)
    async with _started(server) as channel:
        stub = verify_service_pb2_grpc.VerifyServiceStub(channel)
        running = asyncio.ensure_future(stub.GetModelInfo(Request(), timeout=10))
        await entered.wait()

        stopping = asyncio.create_task(server.stop(10))
        await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetModelInfo(Request(), timeout=10)
        release.set()
        answer = await running
        await stopping

    assert answer.model == "slow"
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_termination_signal_sets_the_event(number: signal.Signals) -> None:
    async with termination_signal() as received:
        assert not received.is_set()

        os.kill(os.getpid(), number)

        await asyncio.wait_for(received.wait(), 5)
