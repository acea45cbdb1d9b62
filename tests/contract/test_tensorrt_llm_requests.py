"""
The life of requests on the tensorrt-llm engine, over the fake package: refusals, limits, ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import pytest

from paceline.channels import open_link
from paceline.v1 import draft_service_pb2, types_pb2, verify_service_pb2, verify_service_pb2_grpc
from tests.doubles.running_verifier import POOL, attached, eventually, running_drafter, start
from tests.doubles.scripted_drafter import ScriptedDrafter, chain
from tests.doubles.tensorrt_verifier import EOS, greedy, running_tensorrt_verifier
from verify_service.engines.tensorrt_llm import loading
from verify_service.engines.tensorrt_llm.request_loop import LoopConfig

PROMPT = [3, 1, 4, 1, 5]


def expected(num_tokens: int) -> list[int]:
    return greedy(PROMPT, num_tokens)


def lying(session_id: int, committed: list[int]) -> Iterable[draft_service_pb2.Proposal]:
    wrong = [(committed[-1] + 1 + index) % EOS for index in range(20)]
    return [chain(session_id, len(committed), wrong)]


UNSUPPORTED = {
    "sampling.repetition_penalty": types_pb2.SamplingParams(repetition_penalty=1.1),
    "sampling.presence_penalty": types_pb2.SamplingParams(presence_penalty=0.5),
    "sampling.frequency_penalty": types_pb2.SamplingParams(frequency_penalty=0.5),
    "sampling.logit_bias": types_pb2.SamplingParams(logit_bias={3: 1.0}),
    "sampling.min_p": types_pb2.SamplingParams(min_p=0.1),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("field", [*UNSUPPORTED, "limits.min_tokens", "num_logprobs"])
async def test_an_option_that_is_not_supported_is_refused_by_name(
    field: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = start(1, PROMPT)
    if field in UNSUPPORTED:
        request.sampling.MergeFrom(UNSUPPORTED[field])
    elif field == "num_logprobs":
        request.num_logprobs = 0
    else:
        request.limits.min_tokens = 3
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        attached(verifier.address) as gateway,
    ):
        await gateway.start(request)
        failure = (await gateway.result(1)).failure

    assert failure is not None
    assert failure.field == field
    assert failure.reason == "UNSUPPORTED"
    assert failure.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


@pytest.mark.asyncio
async def test_capabilities_promise_no_more_than_the_engine_keeps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        open_link(verifier.address) as channel,
    ):
        stub = verify_service_pb2_grpc.VerifyServiceStub(channel)
        info = await stub.GetModelInfo(verify_service_pb2.GetModelInfoRequest())

    assert info.engine == "tensorrt-llm"
    assert info.capabilities == verify_service_pb2.Capabilities(
        verification_rules=[types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH],
        max_draft_tokens=8,
        prefix_caching=True,
    )


@pytest.mark.asyncio
async def test_cancel_and_deadline_end_a_request_and_free_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path, max_running=1) as verifier,
        attached(verifier.address) as gateway,
    ):
        verifier.world.step_seconds = 0.02
        late = start(2, PROMPT, max_tokens=400)
        late.time_remaining.FromMilliseconds(300)
        await gateway.start(start(1, PROMPT, max_tokens=400), late)
        await eventually(lambda: len(gateway.received[1].token_ids) > 3)
        cancel = verify_service_pb2.Cancel(request_id=1)
        await gateway.send(verify_service_pb2.AttachRequest(cancels=[cancel]))
        first, second = await gateway.result(1), await gateway.result(2)
        await gateway.start(start(3, PROMPT, max_tokens=5))
        third = await gateway.result(3)

    assert first.finish_reason == types_pb2.FINISH_REASON_CANCELLED
    assert second.finish_reason == types_pb2.FINISH_REASON_DEADLINE
    assert third.token_ids == expected(5)


@pytest.mark.asyncio
async def test_the_waiting_queue_is_bounded_and_served_by_priority(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path, max_running=1, max_waiting=2) as verifier,
        attached(verifier.address) as gateway,
    ):
        verifier.world.step_seconds = 0.01
        urgent = start(3, PROMPT, max_tokens=5)
        urgent.priority = types_pb2.PRIORITY_CLASS_INTERACTIVE
        plain = (start(index, PROMPT, max_tokens=20) for index in (1, 2))
        await gateway.start(*plain, urgent, start(4, PROMPT))
        results = {index: await gateway.result(index) for index in (1, 2, 3, 4)}
        order = [
            result.request_id
            for message in gateway.messages
            for result in message.results
            if result.finish_reason
        ]

    assert order == [1, 3, 2]
    assert results[4].failure is not None
    assert results[4].failure.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


@pytest.mark.asyncio
async def test_a_dying_executor_fails_its_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        attached(verifier.address) as gateway,
    ):
        verifier.world.step_seconds = 0.01
        await gateway.start(start(1, PROMPT, max_tokens=400))
        await eventually(lambda: len(gateway.received[1].token_ids) > 3)
        monkeypatch.setattr(verifier.world.executors[0], "step", _raise)
        failure = (await gateway.result(1)).failure

    assert failure is not None
    assert failure.reason == "ENGINE_FAILED"


@pytest.mark.asyncio
async def test_a_silent_executor_fails_its_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hung engine must not hang its callers."""
    impatient = functools.partial(LoopConfig, silence_seconds=0.3)
    monkeypatch.setattr(loading, "LoopConfig", impatient)
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        attached(verifier.address) as gateway,
    ):
        verifier.world.is_hung = True
        await gateway.start(start(1, PROMPT))
        failure = (await gateway.result(1)).failure

    assert failure is not None
    assert "silent for 0.3 s" in failure.message


def _raise() -> None:
    raise RuntimeError("device-side assert")


@pytest.mark.asyncio
async def test_sampling_draws_from_the_target_with_a_drafter_attached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At T > 0 the seed fixes nothing here; every token still comes from the target's own draw."""
    async with (
        running_drafter(ScriptedDrafter(propose=lying)) as address,
        running_tensorrt_verifier(monkeypatch, tmp_path, pools={POOL: address}) as verifier,
        attached(verifier.address) as gateway,
    ):
        request = start(1, PROMPT, max_tokens=30, pool=POOL)
        request.sampling.temperature = 0.8
        request.sampling.seed = 7
        await gateway.start(request)
        received = await gateway.result(1)
        params = verifier.world.submitted[0]["params"]

    assert len(received.token_ids) == 30
    assert (params.temperature, params.top_k, params.top_p) == (pytest.approx(0.8), 0, 1.0)
    assert params.seed is None


@pytest.mark.asyncio
async def test_lockstep_answers_each_proposal_with_one_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bring your own drafter: right, wrong, half right and empty trees, one verdict each."""
    target = greedy(PROMPT, 40)
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        open_link(verifier.address) as channel,
    ):
        call = verify_service_pb2_grpc.VerifyServiceStub(channel).Verify()
        opening = start(1, PROMPT, max_tokens=40)
        await call.write(verify_service_pb2.VerifyRequest(open=opening))
        answer = await _read(call)
        committed = list(PROMPT)
        trees: list[Callable[[list[int]], list[int]]] = [
            lambda rest: rest[:5],
            lambda rest: [],
            lambda rest: [(rest[0] + 1) % EOS],
            lambda rest: [*rest[:2], (rest[2] + 1) % EOS],
        ]
        accepted = []
        for make_tree in trees * 2:
            tokens = make_tree(target[len(committed) - len(PROMPT) :])
            proposal = verify_service_pb2.VerifyProposal(
                base_len=len(committed),
                tree=types_pb2.TokenTree(token_ids=tokens, parents=range(len(tokens))),
            )
            await call.write(verify_service_pb2.VerifyRequest(proposal=proposal))
            verdict = (await _read(call)).verdict
            committed.extend(verdict.token_ids)
            accepted.append((verdict.num_drafted, verdict.num_accepted))
        call.cancel()

    assert answer.opened_len == len(PROMPT)
    assert committed == [*PROMPT, *target[: len(committed) - len(PROMPT)]]
    assert accepted == [(5, 5), (0, 0), (1, 0), (3, 2)] * 2


async def _read(
    call: grpc.aio.StreamStreamCall[
        verify_service_pb2.VerifyRequest, verify_service_pb2.VerifyResponse
    ],
) -> verify_service_pb2.VerifyResponse:
    async with asyncio.timeout(10):
        response = await call.read()
    assert isinstance(response, verify_service_pb2.VerifyResponse)
    return response


@pytest.mark.asyncio
async def test_tenants_do_not_share_cached_prefixes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        attached(verifier.address) as gateway,
    ):
        await gateway.start(
            start(1, PROMPT, max_tokens=2, tenant="a"), start(2, PROMPT, max_tokens=2, tenant="b")
        )
        await gateway.result(1)
        await gateway.result(2)
        salts = {entry["salt"] for entry in verifier.world.submitted}

    assert len(salts) == 2
