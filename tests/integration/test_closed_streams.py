"""Services that are started without some of the standard streams, as supervisors do."""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.cli.address import bindable_address
from tests.doubles.up_command import TINY_MODEL

ANY_PORT = "--listen=127.0.0.1:0"
WRONG = {
    "gateway": ("--model=/nowhere", "--verifiers=127.0.0.1:9", ANY_PORT),
    "draft_service": ("--drafter=onnx", "--drafter-model=/nowhere", ANY_PORT),
    "verify_service": ("--model=/nowhere", ANY_PORT),
}


async def _outcome(redirection: str, module: str, *arguments: str) -> tuple[int, str]:
    command = f'exec "$@" {redirection}'
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", command, "sh", sys.executable, "-m", module, *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, told = await asyncio.wait_for(process.communicate(), 50)
    return process.returncode or 0, told.decode()


@pytest.mark.asyncio
@pytest.mark.parametrize("module", WRONG)
async def test_wrong_settings_are_told_whatever_streams_are_closed(module: str) -> None:
    code, told = await _outcome("<&- >&-", module, *WRONG[module])

    assert code == 2
    assert len(told.splitlines()) == 1
    assert "/nowhere" in told


@pytest.mark.asyncio
@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_a_gateway_without_standard_streams_stops_as_others_do(redirection: str) -> None:
    """libuv aborts a process that closes a socket under one of their numbers."""
    address = bindable_address("127.0.0.1:0", "--listen")
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "gateway",
        f"--model={TINY_MODEL}", "--verifiers=127.0.0.1:9", f"--listen={address}",
        "--propagation-delay-seconds=0",
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(40):
            await channel.channel_ready()
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        process.terminate()
        code = await asyncio.wait_for(process.wait(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert code == 0
