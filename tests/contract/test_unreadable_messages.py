"""A call with a message that is none of its type ends as the caller's fault, and quietly."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from draft_service.registry import create_drafter
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from tests.doubles.running_verifier import make_engine, running_verifier

pytestmark = pytest.mark.asyncio

GARBAGE = b"\xff\xff\xff"


async def ending(address: str, method: str) -> tuple[grpc.StatusCode, str]:
    """Send garbage on a stream and return how it ended."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(method)(timeout=10)  # type: ignore[var-annotated]  # bytes
        await call.write(GARBAGE)
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code(), await call.details()


@pytest.mark.parametrize("method", ["Attach", "Verify"])
async def test_a_verifier_blames_the_caller(method: str) -> None:
    with capture_logs() as logs:
        async with running_verifier(make_engine()) as (_, address):
            code, details = await ending(address, f"/paceline.v1.VerifyService/{method}")

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be read" in details
    assert not any("exc_info" in line for line in logs)


async def test_a_draft_service_blames_the_caller_in_one_line_and_serves_on() -> None:
    settings = DraftSettings(listen="127.0.0.1:0")
    with capture_logs() as logs:
        async with running_server(settings, create_drafter(settings)) as server:
            endings = [
                await ending(server.address, "/paceline.v1.DraftService/Draft") for _ in range(2)
            ]

    assert {code for code, _ in endings} == {grpc.StatusCode.INVALID_ARGUMENT}
    complaints = [line for line in logs if line["log_level"] in {"warning", "error"}]
    assert [line["event"] for line in complaints] == ["stream_unreadable"] * 2
    assert not any("exc_info" in line for line in logs)


async def refusal(address: str, method: str) -> grpc.aio.AioRpcError:
    """Send garbage to a method of one message and return what it ends in."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(method)  # type: ignore[var-annotated]  # bytes
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(GARBAGE, timeout=10)
        assert await call(b"", timeout=10)
    return error.value


async def test_methods_of_one_message_blame_the_caller_and_serve_on() -> None:
    settings = DraftSettings(listen="127.0.0.1:0")
    async with (
        running_verifier(make_engine()) as (_, verifier),
        running_server(settings, create_drafter(settings)) as drafter,
    ):
        refusals = [
            await refusal(verifier, "/paceline.v1.VerifyService/GetModelInfo"),
            await refusal(drafter.address, "/paceline.v1.DraftService/GetCapabilities"),
        ]

    assert {error.code() for error in refusals} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert all("cannot be read" in (error.details() or "") for error in refusals)
