"""The verify service as a process: how it starts, drains, and says what is wrong."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.channels import open_link
from paceline.v1 import types_pb2
from tests.doubles.running_verifier import attached, eventually, start
from tests.doubles.service_process import ServiceProcess, service_process
from tests.doubles.verify_client import model_info, verify_client

PROMPT = [1, 2, 3, 4, 5]
TABLE = ("--target", "table")
LONG = 1500
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


async def started(service: ServiceProcess) -> str:
    """Wait until the service is ready and return its address."""
    listening = await service.event("listening")
    await service.event("ready")
    return str(listening["address"])


async def readiness(address: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    """Return what the service says about its readiness."""
    async with open_link(address) as channel:
        response = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=10
        )
    return response.status


def run_to_exit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the service with arguments that end it at once."""
    return subprocess.run(  # noqa: S603  # our own interpreter and module
        [sys.executable, "-m", "verify_service", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.asyncio
async def test_it_says_where_it_listens_and_a_second_one_cannot() -> None:
    async with service_process("verify_service", *TABLE) as service:
        address = await started(service)
        second = await asyncio.to_thread(
            run_to_exit, "--target", "table", "--listen", address, "--log-level", "warning"
        )

        assert await readiness(address) == health_pb2.HealthCheckResponse.SERVING
        assert (await model_info(address)).engine == "table"
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert address in second.stderr
    assert "--listen" in second.stderr


@pytest.mark.asyncio
async def test_sigterm_lets_running_requests_end_and_takes_no_new_ones() -> None:
    async with (
        service_process("verify_service", *TABLE) as service,
        attached(await started(service)) as gateway,
    ):
        await gateway.start(start(1, PROMPT, max_tokens=LONG))
        await eventually(lambda: len(gateway.received[1].token_ids) > 5)

        service.signal(signal.SIGTERM)
        await eventually(lambda: gateway.messages[-1].draining)
        await gateway.start(start(2, PROMPT))
        refused = await gateway.result(2)
        received = await gateway.result(1)

        assert await service.exit_code() == 0
    assert refused.failure is not None
    assert refused.failure.code == UNAVAILABLE
    assert len(received.token_ids) == LONG
    assert received.finish_reason == types_pb2.FINISH_REASON_LENGTH


@pytest.mark.asyncio
async def test_it_is_not_ready_while_it_drains_and_ends_when_the_time_is_over() -> None:
    waiting = ("--propagation-delay-seconds", "0.5", "--drain-seconds", "0.5")
    async with service_process("verify_service", *TABLE, *waiting) as service:
        address = await started(service)
        async with verify_client(address) as parked:
            await parked.open(start(1, PROMPT))

            service.signal(signal.SIGTERM)
            await service.event("draining")
            await asyncio.sleep(0.05)
            status = await readiness(address)

            assert await service.exit_code() == 0
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.asyncio
async def test_second_signal_ends_it_at_once() -> None:
    async with (
        service_process("verify_service", *TABLE, "--drain-seconds", "600") as service,
        verify_client(await started(service)) as parked,
    ):
        await parked.open(start(1, PROMPT))
        service.signal(signal.SIGTERM)
        await service.event("draining")

        service.signal(signal.SIGTERM)

        assert await service.exit_code() == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--no-such-flag", "1"], "no-such-flag", id="unknown flag"),
        pytest.param(["--model", "no-such-folder"], "no-such-folder", id="no model folder"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_it(arguments: list[str], named: str) -> None:
    result = run_to_exit(*arguments)

    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert named in result.stderr
