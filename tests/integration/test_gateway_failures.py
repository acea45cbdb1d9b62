"""What a gateway does when verifiers, clients or time fail it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as verify
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.doubles.gateway_requests import PROMPT, asking, eventually, wait_for_empty
from tests.doubles.running_gateway import (
    reason,
    retry_seconds,
    running_gateway,
    until_ready,
    violated_fields,
)
from tests.doubles.scripted_verifier import (
    ScriptedVerifier,
    expected_token_ids,
    model_info,
    model_steps,
    refusing,
    serving,
    step,
)

if TYPE_CHECKING:
    from paceline.v1.generation_service_pb2_grpc import GenerationServiceAsyncStub

pytestmark = pytest.mark.asyncio


def silent(_: verify.Start) -> list[verify.AttachResponse]:
    """Answer nothing at all."""
    return []


async def test_an_unreachable_verifier_means_unavailable_until_it_comes(folder: Path) -> None:
    verifier = ScriptedVerifier()
    async with serving(verifier) as address:
        pass
    async with running_gateway(folder, address, wait_until_ready=False) as running:
        error = await running.failure(asking())
        not_ready = running.gateway.generator.verifiers.is_ready
        async with serving(verifier, address):
            await until_ready(running.gateway)
            answer = await running.generate(asking())

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_seconds(error) == pytest.approx(1.0)
    assert reason(error) == "NO_VERIFIER"
    assert not not_ready
    assert answer.usage.completion_tokens == 12


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (model_info(tokenizer_fingerprint="0" * 64), "TOKENIZER_MISMATCH"),
        (
            model_info(protocol=types_pb2.ProtocolRange(min_version=7, max_version=9)),
            "PROTOCOL_MISMATCH",
        ),
    ],
)
async def test_a_verifier_that_does_not_fit_is_refused(
    folder: Path, info: verify.GetModelInfoResponse, expected: str
) -> None:
    """B113, B116."""
    verifier = ScriptedVerifier(info=info)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, wait_until_ready=False) as running,
    ):
        counters = running.gateway.generator.counters
        await eventually(lambda: counters.value("verifiers_refused", address, expected))
        error = await running.failure(asking())

    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason(error) == expected
    assert verifier.num_attached == 0


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "sampling.min_p"),
        (grpc.StatusCode.INTERNAL, ""),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ""),
    ],
)
async def test_a_verifiers_failure_becomes_the_requests_status(
    folder: Path, code: grpc.StatusCode, field: str
) -> None:
    verifier = refusing(code, field)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        error = await running.failure(asking())

    assert error.code() is code
    assert reason(error) == "SCRIPTED"
    assert violated_fields(error) == ([field] if field else [])
    assert retry_seconds(error) == pytest.approx(0.25)


async def test_a_failure_of_one_request_leaves_the_others_alone(folder: Path) -> None:
    def script(start: verify.Start) -> list[verify.AttachResponse]:
        if start.limits.max_tokens == 13:
            failure = verify.Failure(request_id=start.request_id, code=13, message="bad")
            return [verify.AttachResponse(failures=[failure])]
        return list(model_steps()(start))

    verifier = ScriptedVerifier(script, pause_seconds=0.005)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        answers = await asyncio.gather(
            running.generate(asking(40)), running.failure(asking(13)), running.generate(asking(30))
        )

    assert answers[1].code() is grpc.StatusCode.INTERNAL
    assert list(answers[0].outputs[0].token_ids) == expected_token_ids(PROMPT, 40)
    assert list(answers[2].outputs[0].token_ids) == expected_token_ids(PROMPT, 30)


@pytest.mark.parametrize("reads", [0, 2])
async def test_a_client_that_goes_away_cancels_at_the_verifier(folder: Path, reads: int) -> None:
    verifier = ScriptedVerifier(lambda start: [step(start, [50], is_prefill=True)])
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        call = running.stub.StreamGenerate(messages.StreamGenerateRequest(request=asking()))
        for _ in range(reads):
            await call.read()
        await verifier.until(lambda seen: seen.starts)
        call.cancel()
        await verifier.until(lambda seen: seen.cancels)
        await wait_for_empty(running)

    assert verifier.cancels == [verifier.starts[0].request_id]


async def test_the_clients_deadline_cancels_at_the_verifier(folder: Path) -> None:
    verifier = ScriptedVerifier(silent)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await running.stub.Generate(asking(), timeout=0.3)
        await verifier.until(lambda seen: seen.cancels)
        await wait_for_empty(running)

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < verifier.starts[0].time_remaining.ToMilliseconds() <= 300


async def test_a_default_deadline_holds_for_calls_without_one(folder: Path) -> None:
    verifier = ScriptedVerifier(silent)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, default_deadline_seconds=0.3) as running,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await running.stub.Generate(asking())
        await verifier.until(lambda seen: seen.cancels)

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_request_whose_time_runs_out_in_the_queue_ends_there(folder: Path) -> None:
    verifier = ScriptedVerifier(silent)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, max_running=1) as running,
    ):
        holding = running.stub.StreamGenerate(messages.StreamGenerateRequest(request=asking()))
        await holding.read()
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await running.stub.Generate(asking(), timeout=0.2)
        await asyncio.sleep(0.05)
        num_waiting = running.gateway.generator.admission.num_waiting

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert num_waiting == 0
    assert len(verifier.starts) == 1


async def test_a_full_queue_answers_resource_exhausted_with_a_time_to_retry(
    folder: Path,
) -> None:
    verifier = ScriptedVerifier(silent)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, max_running=1, max_waiting=0) as running,
    ):
        holding = running.stub.StreamGenerate(messages.StreamGenerateRequest(request=asking()))
        await holding.read()
        error = await running.failure(asking())

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_seconds(error)
    assert reason(error) == "QUEUE_FULL"
    trailers = dict(error.trailing_metadata() or ())
    assert int(str(trailers["grpc-retry-pushback-ms"])) > 0


async def test_a_reader_that_stalls_does_not_stall_another_and_gives_its_room_back(
    folder: Path,
) -> None:
    verifier = ScriptedVerifier(model_steps(200), info=model_info(context_length=100_000))
    small_window = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384))
    async with (
        serving(verifier) as address,
        running_gateway(folder, address, max_running=2) as running,
        grpc.aio.insecure_channel(running.gateway.address, options=small_window) as channel,
    ):
        stub: GenerationServiceAsyncStub = GenerationServiceStub(channel)
        call = stub.StreamGenerate(messages.StreamGenerateRequest(request=asking(60_000)))
        stalled = aiter(call)
        await anext(stalled)
        quick = await asyncio.wait_for(running.generate(asking(50)), 5)
        await wait_for_empty(running)
        num_done = running.gateway.generator.counters.value("requests", "StreamGenerate", "OK")
        rest = [event async for event in stalled]

    token_ids = [i for event in rest for i in event.delta.token_ids]
    assert list(quick.outputs[0].token_ids) == expected_token_ids(PROMPT, 50)
    assert num_done == 0
    assert token_ids == expected_token_ids(PROMPT, 60_000)


async def test_steps_for_unknown_requests_are_ignored(folder: Path) -> None:
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.01)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        stray = verify.AttachResponse(
            results=[verify.StepResult(request_id=999, token_ids=[1])],
            failures=[verify.Failure(request_id=998, code=13)],
        )
        await verifier.send(stray)
        answer = await running.generate(asking(12))

    assert list(answer.outputs[0].token_ids) == expected_token_ids(PROMPT, 12)


async def test_figures_that_make_no_sense_spoil_no_answer(folder: Path) -> None:
    """A verifier that works but says nonsense about its work; JSON knows no infinity."""
    most = 2**32 - 1

    def script(start: verify.Start) -> Iterable[verify.AttachResponse]:
        load = verify.LoadReport(estimated_gain=math.inf, kv_utilization=math.nan)
        load.step_time.seconds = 2**62
        first = verify.StepResult(request_id=start.request_id, token_ids=[50], is_prefill=True)
        first.cached_prompt_tokens = most
        first.queue.seconds = 2**62
        yield verify.AttachResponse(results=[first], load=load)
        for finish in (types_pb2.FINISH_REASON_UNSPECIFIED, types_pb2.FINISH_REASON_LENGTH):
            later = verify.StepResult(request_id=start.request_id, token_ids=[51])
            later.num_drafted = later.num_accepted = most
            later.finish_reason = finish
            yield verify.AttachResponse(results=[later], load=load)

    verifier = ScriptedVerifier(script)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        request = asking()
        request.statistics = messages.STATISTICS_LEVEL_STEPS
        answer = await running.generate(request)
        generator = running.gateway.generator
        load = generator.verifiers.links[0].load

    assert list(answer.outputs[0].token_ids) == [50, 51, 51]
    assert answer.speculation.num_draft_tokens == most
    assert (load.estimated_gain, load.kv_utilization) == (1.0, 0.0)


async def test_a_verifier_that_stops_answering_is_given_up(folder: Path) -> None:
    verifier = ScriptedVerifier(silent)
    async with (
        serving(verifier) as address,
        running_gateway(
            folder, address, verifier_timeout_seconds=0.1, failover_wait_seconds=0.2
        ) as running,
    ):
        answering = asyncio.create_task(running.failure(asking()))
        await verifier.until(lambda seen: seen.starts)
        verifier.answers.clear()
        error = await answering

    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_many_starts_of_one_moment_travel_in_few_messages(folder: Path) -> None:
    verifier = ScriptedVerifier(model_steps())
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        request = asking(3)
        request.n = 16
        await asyncio.gather(*(running.generate(request) for _ in range(8)))

    assert len(verifier.starts) == 128
    assert len([batch for batch in verifier.batches if batch.starts]) <= 8
