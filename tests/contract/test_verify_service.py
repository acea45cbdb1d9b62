"""
What every verify service guarantees to gateways. This suite plays the gateway.

It runs against a service in this process, or against any other with ``--verify-address``; see also
``test_verify_refusals``, and ``test_verify_sessions`` for clients with their own drafter.
"""

from __future__ import annotations

import math

import pytest
from google.protobuf.duration_pb2 import Duration

from paceline.codec import speaks_our_protocol
from paceline.v1 import types_pb2, verify_service_pb2
from tests.doubles.running_verifier import AttachedGateway, attached, eventually, served, start
from tests.doubles.verify_client import model_info

pytestmark = pytest.mark.asyncio

PROMPT = [1, 2, 3, 4, 5]
NUM_TOKENS = 24

Sampling = types_pb2.SamplingParams
Limits = types_pb2.TokenLimits
Start = verify_service_pb2.Start

SAMPLED = Sampling(temperature=1.0, seed=7, frequency_penalty=0.3)
GREEDY = Sampling(temperature=0.0)


async def ids_of(address: str, **fields: object) -> list[int]:
    """Return what one request emits."""
    message = start(1, PROMPT, max_tokens=NUM_TOKENS, **fields)  # type: ignore[arg-type]  # field names
    (received,) = await served(address, message)
    assert received.failure is None
    return received.token_ids


def loads(gateway: AttachedGateway) -> list[verify_service_pb2.LoadReport]:
    """Return the load reports so far."""
    return [message.load for message in gateway.messages if message.HasField("load")]


def is_idle(gateway: AttachedGateway) -> bool:
    """Return whether the last report says that nothing runs or holds KV."""
    last = loads(gateway)[-1:]
    return (
        bool(last)
        and (last[0].num_running, last[0].num_waiting) == (0, 0)
        and (last[0].kv_utilization == 0)
    )


# What it is


async def test_model_info_is_complete(verify_address: str) -> None:
    info = await model_info(verify_address)

    assert info.model
    assert info.engine in ("torch", "tensorrt-llm", "simulated", "table")
    assert info.version
    assert info.vocab_size > max(PROMPT)
    assert info.context_length > len(PROMPT) + NUM_TOKENS
    assert all(token_id < info.vocab_size for token_id in info.eos_token_ids)
    assert speaks_our_protocol(info.protocol)
    assert types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH in info.capabilities.verification_rules
    assert info.default_sampling.HasField("temperature")
    assert info.default_sampling.HasField("top_p")


# Requests


async def test_several_requests_of_one_message_are_all_served(verify_address: str) -> None:
    starts = [start(i, [i, *PROMPT], max_tokens=i) for i in range(1, 7)]

    received = await served(verify_address, *starts)

    assert [len(each.token_ids) for each in received] == [1, 2, 3, 4, 5, 6]
    assert {each.finish_reason for each in received} == {types_pb2.FINISH_REASON_LENGTH}


async def test_first_result_is_the_prefill_and_only_that(verify_address: str) -> None:
    (received,) = await served(verify_address, start(1, PROMPT, max_tokens=6))

    assert [result.is_prefill for result in received.results] == [
        True, *[False] * (len(received.results) - 1),
    ]  # fmt: skip
    assert received.results[0].num_drafted == 0


async def test_two_gateways_may_use_the_same_request_ids(verify_address: str) -> None:
    async with attached(verify_address) as one, attached(verify_address) as other:
        await one.start(start(1, PROMPT, max_tokens=8))
        await other.start(start(1, PROMPT[::-1], max_tokens=9))

        assert len((await one.result(1)).token_ids) == 8
        assert len((await other.result(1)).token_ids) == 9


async def test_repeated_prefix_is_reported_as_cached(verify_address: str) -> None:
    info = await model_info(verify_address)
    if not info.capabilities.prefix_caching:
        pytest.skip("the service caches no prefixes")
    prompt = [token_id % info.vocab_size for token_id in range(100)]

    (first,) = await served(verify_address, start(1, prompt, max_tokens=4, cache_salt="a"))
    (again,) = await served(verify_address, start(1, prompt, max_tokens=4, cache_salt="a"))
    (salted,) = await served(verify_address, start(1, prompt, max_tokens=4, cache_salt="b"))

    assert again.token_ids == first.token_ids == salted.token_ids
    assert 0 < again.results[0].cached_prompt_tokens < len(prompt)
    assert salted.results[0].cached_prompt_tokens == 0


async def test_unknown_pool_is_named_as_the_cause_and_changes_no_id(verify_address: str) -> None:
    plain = await ids_of(verify_address)

    (received,) = await served(
        verify_address, start(1, PROMPT, max_tokens=NUM_TOKENS, pool="no-such-pool")
    )

    assert received.token_ids == plain
    assert received.results[-1].fallback == types_pb2.DRAFT_FALLBACK_NO_POOL
    assert received.num_drafted == 0


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"time_remaining": Duration(seconds=2**62)}, id="endless deadline"),
        pytest.param({"drafting": types_pb2.DraftingPolicy(fallback=99)}, id="unknown cause"),  # type: ignore[arg-type]  # of a later release
    ],
)
async def test_odd_but_harmless_fields_end_no_stream(
    verify_address: str, fields: dict[str, object]
) -> None:
    """B074: one request's oddity must not reach the others of its gateway."""
    odd = start(1, PROMPT, max_tokens=3, **fields)  # type: ignore[arg-type]  # field names

    received = await served(verify_address, odd, start(2, PROMPT, max_tokens=3))

    assert [len(each.token_ids) for each in received] == [3, 3]


# Ends


async def test_cancel_ends_the_request_and_frees_its_blocks(verify_address: str) -> None:
    """B045: what was emitted stays a prefix of the whole answer."""
    async with attached(verify_address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=2000))
        await eventually(lambda: len(gateway.received[1].token_ids) > 2)
        await gateway.send(
            verify_service_pb2.AttachRequest(cancels=[verify_service_pb2.Cancel(request_id=1)])
        )
        received = await gateway.result(1)
        await eventually(lambda: is_idle(gateway))

    plain = await ids_of(verify_address)
    assert received.finish_reason == types_pb2.FINISH_REASON_CANCELLED
    assert received.token_ids[:3] == plain[:3]


async def test_cancel_of_an_unknown_request_is_ignored(verify_address: str) -> None:
    async with attached(verify_address) as gateway:
        await gateway.send(
            verify_service_pb2.AttachRequest(cancels=[verify_service_pb2.Cancel(request_id=9)])
        )
        await gateway.start(start(1, PROMPT, max_tokens=3))

        assert len((await gateway.result(1)).token_ids) == 3


async def test_deadline_ends_the_request(verify_address: str) -> None:
    late = start(1, PROMPT, max_tokens=2000, time_remaining=Duration(nanos=50_000_000))
    over = start(2, PROMPT, time_remaining=Duration())
    async with attached(verify_address) as gateway:
        await gateway.start(late, over)
        received = [await gateway.result(i) for i in (1, 2)]
        await eventually(lambda: is_idle(gateway))

    assert [each.finish_reason for each in received] == [types_pb2.FINISH_REASON_DEADLINE] * 2
    assert received[1].token_ids == []


async def test_stream_that_ends_takes_its_requests_with_it(verify_address: str) -> None:
    """B045: hung up or only half closed, no KV stays behind."""
    async with attached(verify_address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=2000))
        await eventually(lambda: len(gateway.received[1].token_ids) > 2)
    async with attached(verify_address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=2000))
        await eventually(lambda: len(gateway.received[1].token_ids) > 2)
        await gateway.call.done_writing()
        await eventually(gateway.call.done)

    async with attached(verify_address) as observer:
        await eventually(lambda: is_idle(observer))


# Losslessness: the same ids, whoever else runs


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_ids_are_the_same_alone_and_in_a_batch(
    verify_address: str, sampling: Sampling
) -> None:
    """B021, B026, B027, B061: neighbours and earlier requests change nothing."""
    alone = await ids_of(verify_address, sampling=sampling)
    other = Sampling(temperature=1.3, seed=99)
    starts = [
        start(i, PROMPT, max_tokens=NUM_TOKENS, sampling=sampling)
        if i % 2
        else start(i, [i, *PROMPT], max_tokens=i, sampling=other)
        for i in range(1, 13)
    ]

    together = await served(verify_address, *starts)

    assert all(received.token_ids == alone for received in together[::2])
    assert await ids_of(verify_address, sampling=sampling) == alone


async def test_other_seeds_give_other_texts(verify_address: str) -> None:
    """B029: ten seeds, at least nine texts."""
    starts = [
        start(i, PROMPT, max_tokens=NUM_TOKENS, sampling=Sampling(temperature=1.5, seed=i))
        for i in range(1, 11)
    ]

    received = await served(verify_address, *starts)

    assert len({tuple(each.token_ids) for each in received}) >= 9


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_emitted", [1, 10, NUM_TOKENS - 1])
async def test_resume_continues_where_the_answer_broke_off(
    verify_address: str, sampling: Sampling, num_emitted: int
) -> None:
    """Failover: prompt, emitted ids and seed are all that another verifier needs."""
    whole = await ids_of(verify_address, sampling=sampling)

    rest = await ids_of(verify_address, sampling=sampling, emitted_token_ids=whole[:num_emitted])

    assert rest == whole[num_emitted:]


# Limits and log-probabilities


async def test_stop_token_ends_the_answer_and_is_named(verify_address: str) -> None:
    """B036, B037."""
    plain = await ids_of(verify_address, sampling=SAMPLED)
    stop = plain[9]

    (received,) = await served(
        verify_address,
        start(1, PROMPT, sampling=SAMPLED, limits=Limits(stop_token_ids=[stop], ignore_eos=True)),
    )

    assert received.token_ids == plain[: plain.index(stop) + 1]
    assert received.finish_reason == types_pb2.FINISH_REASON_STOP
    assert received.results[-1].matched_stop_token_id == stop


async def test_stop_token_is_not_chosen_before_the_minimum(verify_address: str) -> None:
    plain = await ids_of(verify_address)
    limits = Limits(min_tokens=12, max_tokens=NUM_TOKENS, stop_token_ids=plain[:2])

    (received,) = await served(
        verify_address, Start(request_id=1, prompt_token_ids=PROMPT, sampling=GREEDY, limits=limits)
    )

    assert len(received.token_ids) >= 12
    assert not {*plain[:2]} & {*received.token_ids[:12]}


@pytest.mark.parametrize("num_logprobs", [0, 2])
async def test_every_token_has_its_logprobs_when_asked(
    verify_address: str, num_logprobs: int
) -> None:
    """B030, B031, B034, B035: none missing, none constant, and never above certainty."""
    (received,) = await served(
        verify_address,
        start(1, PROMPT, max_tokens=NUM_TOKENS, sampling=SAMPLED, num_logprobs=num_logprobs),
    )

    entries = [each for result in received.results for each in result.logprobs]
    assert len(entries) == len(received.token_ids) == NUM_TOKENS
    assert all(each.logprob <= 0 for each in entries)
    assert len({each.logprob for each in entries}) > 1
    assert all(len(each.top_logprobs) == num_logprobs for each in entries)
    assert all(sum(math.exp(t.logprob) for t in each.top_logprobs) <= 1.0001 for each in entries)


async def test_no_logprobs_unless_asked(verify_address: str) -> None:
    (received,) = await served(verify_address, start(1, PROMPT, max_tokens=3))

    assert not any(result.logprobs for result in received.results)


# Load


async def test_load_is_reported_while_idle(verify_address: str) -> None:
    async with attached(verify_address) as gateway:
        await eventually(lambda: len(loads(gateway)) >= 3)

        assert is_idle(gateway)
        assert loads(gateway)[-1].max_running > 0
        assert loads(gateway)[-1].estimated_gain > 0


async def test_load_is_reported_while_busy(verify_address: str) -> None:
    async with attached(verify_address) as gateway:
        await gateway.start(*(start(i, [i, *PROMPT], max_tokens=60) for i in range(1, 4)))
        for i in range(1, 4):
            await gateway.result(i)
        busy = max(loads(gateway), key=lambda load: load.num_running)
        await eventually(lambda: is_idle(gateway))

    assert busy.num_running == 3
    assert busy.kv_utilization > 0
    assert busy.rows > 0
    assert busy.step_time.ToNanoseconds() > 0
