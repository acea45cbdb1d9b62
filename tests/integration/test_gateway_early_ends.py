"""Requests that a gateway ends early: what was gathered is sent, and the cause told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.gateway_requests import asking, eventually, wait_for_empty
from tests.doubles.running_gateway import (
    CALL_SECONDS,
    RunningGateway,
    reason,
    retry_seconds,
    running_gateway,
)
from tests.doubles.scripted_verifier import ScriptedVerifier, model_steps, serving

pytestmark = pytest.mark.asyncio

GATHERED = 1000


async def _until_error(
    running: RunningGateway, request: messages.GenerateRequest, seconds: float | None = None
) -> tuple[list[messages.StreamGenerateResponse], grpc.aio.AioRpcError]:
    events: list[messages.StreamGenerateResponse] = []
    call = running.stub.StreamGenerate(
        messages.StreamGenerateRequest(request=request), timeout=seconds
    )
    try:
        async for event in call:
            events.append(event)  # noqa: PERF401 - what came before the error counts
    except grpc.aio.AioRpcError as error:
        return events, error
    raise AssertionError("the call succeeded")


def _num_tokens(events: list[messages.StreamGenerateResponse]) -> int:
    return sum(len(event.delta.token_ids) for event in events)


def _gathering(num_outputs: int = 1) -> messages.GenerateRequest:
    request = asking(400)
    request.n = num_outputs
    request.output.min_tokens_per_delta = GATHERED
    return request


@asynccontextmanager
async def _losable(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[RunningGateway, ScriptedVerifier, AsyncExitStack]]:
    """Run a gateway in front of a verifier that ends when its stack is closed."""
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.02)
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(serving(verifier))
        async with running_gateway(folder, address, **settings) as running:
            yield running, verifier, server


def _draining(seconds: float) -> dict[str, Any]:
    return {"drain_seconds": seconds, "propagation_delay_seconds": 0.0}


@pytest.mark.parametrize("num_outputs", [1, 2])
async def test_what_was_gathered_comes_before_the_deadline_of_the_gateway(
    folder: Path, num_outputs: int
) -> None:
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.02)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, default_deadline_seconds=0.5) as running,
    ):
        events, error = await _until_error(running, _gathering(num_outputs))
        await wait_for_empty(running)

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    indices = [event.delta.index for event in events if event.HasField("delta")]
    assert sorted(indices) == list(range(num_outputs))
    assert all(
        event.delta.completion_tokens == len(event.delta.token_ids) > 0
        for event in events
        if event.HasField("delta")
    )


async def test_what_was_gathered_comes_before_the_loss_of_the_last_verifier(folder: Path) -> None:
    async with _losable(folder, failover_wait_seconds=0.1) as (running, verifier, server):
        asked = asyncio.create_task(_until_error(running, _gathering(), CALL_SECONDS))
        await verifier.until(lambda seen: seen.starts)
        await asyncio.sleep(0.3)
        await server.aclose()
        events, error = await asked

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert _num_tokens(events) > 0


async def test_a_deadline_that_passes_while_no_verifier_is_there_is_told_as_one(
    folder: Path,
) -> None:
    async with _losable(folder, default_deadline_seconds=0.6) as (running, verifier, server):
        asked = asyncio.create_task(_until_error(running, asking(400)))
        await verifier.until(lambda seen: seen.starts)
        await server.aclose()
        _, error = await asked

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_what_a_drain_cuts_short_is_told_with_what_was_gathered(folder: Path) -> None:
    """Running and waiting requests alike; the log does not blame the client."""
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.02)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, max_running=1, **_draining(0.3)) as running,
    ):
        runs = asyncio.create_task(_until_error(running, _gathering(), CALL_SECONDS))
        await verifier.until(lambda seen: seen.starts)
        waits = asyncio.create_task(_until_error(running, asking(), CALL_SECONDS))
        await eventually(lambda: running.gateway.generator.admission.num_waiting == 1)
        with capture_logs() as logs:
            await running.gateway.drain()
            events, cut = await runs
            _, never_began = await waits

    assert _num_tokens(events) > 0
    for error in (cut, never_began):
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert reason(error) == "GATEWAY_STOPPING"
        assert retry_seconds(error) is not None
        assert "paceline-request-id" in dict(error.trailing_metadata() or ())
    ended = [entry["code"] for entry in logs if entry["event"] == "request_finished"]
    assert ended == ["UNAVAILABLE", "UNAVAILABLE"]


async def test_a_request_that_is_complete_in_time_outlives_the_drain(folder: Path) -> None:
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.02)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, **_draining(5.0)) as running,
    ):
        asked = asyncio.create_task(running.generate(asking(30)))
        await verifier.until(lambda seen: seen.starts)
        await running.gateway.drain()
        answer = await asked

    assert answer.usage.completion_tokens == 30
