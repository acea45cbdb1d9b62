"""Requests that move to another verifier: nothing of it shows in their ids."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import verify_service_pb2 as verify
from tests.doubles.gateway_requests import PROMPT, asking, wait_for_empty
from tests.doubles.running_gateway import (
    reason,
    retry_seconds,
    running_gateway,
)
from tests.doubles.scripted_verifier import (
    ScriptedVerifier,
    expected_token_ids,
    model_steps,
    refusing,
    serving,
    step,
)

pytestmark = pytest.mark.asyncio


async def test_a_request_goes_on_elsewhere_with_the_same_ids_when_its_verifier_is_lost(
    folder: Path,
) -> None:
    verifiers = [ScriptedVerifier(model_steps(), pause_seconds=0.01) for _ in range(2)]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(one)) for one in verifiers]
        running = await stack.enter_async_context(running_gateway(folder, *addresses))
        answering = asyncio.create_task(running.generate(asking(60)))
        await asyncio.sleep(0.1)
        first = next(one for one in verifiers if one.starts)
        second = next(one for one in verifiers if one is not first)
        await first.end_streams()
        answer = await answering
        counters = running.gateway.generator.counters

    resumed = second.starts[0]
    assert list(answer.outputs[0].token_ids) == expected_token_ids(PROMPT, 60)
    assert answer.usage.completion_tokens == 60
    assert len(resumed.emitted_token_ids) > 0
    assert resumed.sampling == first.starts[0].sampling
    assert counters.value("failovers", "VERIFIER_LOST") == 1


async def test_the_same_verifier_takes_its_requests_up_again_when_it_is_back(
    folder: Path,
) -> None:
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.01)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        answering = asyncio.create_task(running.generate(asking(60)))
        await verifier.until(lambda seen: seen.starts)
        await asyncio.sleep(0.05)
        await verifier.end_streams()
        answer = await answering

    assert list(answer.outputs[0].token_ids) == expected_token_ids(PROMPT, 60)
    assert verifier.num_attached == 2


async def test_without_a_verifier_left_a_running_stream_ends_unavailable_and_keeps_its_text(
    folder: Path,
) -> None:
    verifier = ScriptedVerifier(lambda start: [step(start, [50, 51], is_prefill=True)])
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        address = await server.enter_async_context(serving(verifier))
        running = await stack.enter_async_context(
            running_gateway(folder, address, failover_wait_seconds=0.2)
        )
        call = running.stub.StreamGenerate(
            messages.StreamGenerateRequest(request=asking(60)), timeout=10
        )
        stream = aiter(call)
        events = [await anext(stream), await anext(stream)]
        await server.aclose()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await anext(stream)
        await wait_for_empty(running)

    assert list(events[1].delta.token_ids) == [50, 51]
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_seconds(lost.value) is not None


async def test_a_request_refused_for_lack_of_room_is_tried_at_another_verifier(
    folder: Path,
) -> None:
    full, free = refusing(grpc.StatusCode.RESOURCE_EXHAUSTED), ScriptedVerifier()
    async with (
        serving(full) as one,
        serving(free) as other,
        running_gateway(folder, one, other) as running,
    ):
        answers = [await running.generate(asking()) for _ in range(4)]

    assert all(answer.usage.completion_tokens == 12 for answer in answers)


async def test_a_draining_verifier_gets_no_new_requests_and_finishes_its_own(
    folder: Path,
) -> None:
    verifiers = [ScriptedVerifier(model_steps(), pause_seconds=0.02) for _ in range(2)]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(one)) for one in verifiers]
        running = await stack.enter_async_context(running_gateway(folder, *addresses))
        early = asyncio.create_task(running.generate(asking(60)))
        await asyncio.sleep(0.1)
        draining = next(one for one in verifiers if one.starts)
        await draining.send(verify.AttachResponse(draining=True))
        await asyncio.sleep(0.05)
        late = [await running.generate(asking(3)) for _ in range(3)]
        answer = await early

    assert len(draining.starts) == 1
    assert all(one.usage.completion_tokens == 3 for one in late)
    assert list(answer.outputs[0].token_ids) == expected_token_ids(PROMPT, 60)


async def test_streams_that_lose_their_verifiers_again_and_again_change_no_id(
    folder: Path,
) -> None:
    verifiers = [ScriptedVerifier(model_steps(), pause_seconds=0.01) for _ in range(3)]
    dice = random.Random(7)  # noqa: S311 - a test's choice
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(one)) for one in verifiers]
        running = await stack.enter_async_context(
            running_gateway(folder, *addresses, max_failovers=20)
        )
        requests = [asking(100 + index) for index in range(12)]
        answering = asyncio.gather(*(running.generate(request) for request in requests))
        for _ in range(6):
            await asyncio.sleep(dice.uniform(0.02, 0.08))
            await dice.choice(verifiers).end_streams()
        answers = await answering

    assert [list(answer.outputs[0].token_ids) for answer in answers] == [
        expected_token_ids(PROMPT, 100 + index) for index in range(12)
    ]
    assert sum(len(one.starts) for one in verifiers) > 12


async def test_failovers_beyond_the_budget_of_all_requests_end_with_a_time_to_retry(
    folder: Path,
) -> None:
    def lost(start: verify.Start) -> list[verify.AttachResponse]:
        failure = verify.Failure(
            request_id=start.request_id, code=grpc.StatusCode.UNAVAILABLE.value[0], reason="GONE"
        )
        return [verify.AttachResponse(failures=[failure])]

    failing, able = ScriptedVerifier(lost), ScriptedVerifier()
    async with (
        serving(failing) as one,
        serving(able) as other,
        running_gateway(folder, one, other, failover_burst=2, failovers_per_second=0.01) as running,
    ):
        running.gateway.generator.verifiers.links[1].is_draining = True
        request = asking()
        request.n = 3
        call = asyncio.create_task(running.failure(request))
        await failing.until(lambda seen: seen.starts)
        running.gateway.generator.verifiers.links[1].is_draining = False
        error = await call
        counters = running.gateway.generator.counters
        await wait_for_empty(running)

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert reason(error) == "FAILOVER_BUDGET"
    assert 0 < (retry_seconds(error) or 0) <= 100
    assert counters.value("failovers", "GONE") == 2
    assert counters.value("failovers_refused", "GONE") == 1
