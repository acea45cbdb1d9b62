"""Verifiers on which a seed fixes no output: what is refused, what is resumed, and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import verify_service_pb2 as verify
from tests.doubles.gateway_requests import PROMPT, asking
from tests.doubles.running_gateway import RunningGateway, running_gateway, violated_fields
from tests.doubles.scripted_verifier import (
    ScriptedVerifier,
    expected_token_ids,
    model_info,
    model_steps,
    serving,
)

pytestmark = pytest.mark.asyncio


def seedless_info() -> verify.GetModelInfoResponse:
    """Return what a verifier says whose engine reads no seed."""
    info = model_info()
    info.capabilities.seeded_invariance = False
    return info


def sampled(max_tokens: int, *, seed: int | None = None) -> messages.GenerateRequest:
    """Return a request that is sampled."""
    request = asking(max_tokens)
    request.sampling.temperature = 0.8
    if seed is not None:
        request.sampling.seed = seed
    return request


@pytest_asyncio.fixture
async def seedless(folder: Path) -> AsyncIterator[RunningGateway]:
    """A gateway in front of such a verifier."""
    verifier = ScriptedVerifier(info=seedless_info())
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        yield running


async def test_a_seed_that_would_fix_nothing_is_refused_by_name(seedless: RunningGateway) -> None:
    """B029: never ignored."""
    error = await seedless.failure(sampled(4, seed=7))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_fields(error) == ["sampling.seed"]
    assert "fixes no output on this verifier's engine" in (error.details() or "")


async def test_without_a_seed_or_without_noise_nothing_is_refused(seedless: RunningGateway) -> None:
    greedy = asking(4)
    greedy.sampling.seed = 7

    answers = [await seedless.generate(request) for request in (greedy, sampled(4))]

    assert [len(answer.outputs[0].token_ids) for answer in answers] == [4, 4]


async def test_an_answer_is_resumed_with_the_seed_that_was_echoed(seedless: RunningGateway) -> None:
    """A client whose gateway died sends it back; it asks for a continuation, not for the same."""
    answer = await seedless.generate(sampled(10))
    resumed = sampled(10, seed=answer.sampling.seed)
    resumed.resume_token_ids.extend(answer.outputs[0].token_ids[:4])

    rest = await seedless.generate(resumed)

    assert list(rest.outputs[0].token_ids) == expected_token_ids(PROMPT, 10)[4:]


async def test_a_seeded_answer_goes_on_only_where_seeds_hold(folder: Path) -> None:
    """Failover to another engine would finish it with other tokens."""
    full = ScriptedVerifier(model_steps(), pause_seconds=0.01)
    lesser = ScriptedVerifier(model_steps(), info=seedless_info())
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(one)) for one in (full, lesser)]
        running = await stack.enter_async_context(running_gateway(folder, *addresses))
        answering = asyncio.create_task(running.generate(sampled(60, seed=7)))
        await full.until(lambda seen: seen.starts)
        await asyncio.sleep(0.05)
        await full.end_streams()
        answer = await answering

    assert len(answer.outputs[0].token_ids) == 60
    assert full.num_attached == 2
    assert lesser.starts == []
