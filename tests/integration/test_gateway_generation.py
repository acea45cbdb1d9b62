"""What a gateway answers, against a scripted verifier."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from paceline.noise import derive_seed
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as verify
from tests.doubles.gateway_requests import PROMPT, asking
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_verifier import (
    ScriptedVerifier,
    expected_token_ids,
    model_info,
    model_steps,
    step,
)

pytestmark = pytest.mark.asyncio


async def test_a_stream_is_started_deltas_finished_summary(
    running: RunningGateway, tokenizer: Tokenizer
) -> None:
    events = await running.stream(asking(12))

    kinds = [event.WhichOneof("event") for event in events]
    deltas = [event.delta for event in events if event.HasField("delta")]
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert kinds[0] == "started"
    assert kinds[-2:] == ["finished", "summary"]
    assert set(kinds[1:-2]) == {"delta"}
    assert token_ids == expected_token_ids(PROMPT, 12)
    assert "".join(delta.text for delta in deltas) == tokenizer.decode(token_ids)
    assert deltas[-1].completion_tokens == 12
    assert events[-2].finished.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_the_unary_answer_equals_the_stream(running: RunningGateway) -> None:
    """B086."""
    request = asking(40)
    request.sampling.seed = 1

    events = await running.stream(request)
    answer = await running.generate(request)

    deltas = [event.delta for event in events if event.HasField("delta")]
    assert answer.outputs[0].text == "".join(delta.text for delta in deltas)
    assert list(answer.outputs[0].token_ids) == [i for delta in deltas for i in delta.token_ids]
    assert answer.usage == events[-1].summary.usage


async def test_usage_and_speculation_are_counted_from_the_steps(running: RunningGateway) -> None:
    """B089, B090, B091: emitted = accepted + steps + the prefill's token; roots are not drafts."""
    answer = await running.generate(asking(13))

    figures = answer.speculation
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 13
    assert figures.num_spec_steps == sum(figures.acceptance_histogram) == 4
    assert figures.num_accepted_draft_tokens == 8
    assert figures.num_draft_tokens == 16
    assert list(figures.acceptance_histogram) == [0, 0, 4]
    assert figures.mean_acceptance_length == pytest.approx(3.0)
    assert figures.draft_acceptance_rate == pytest.approx(0.5)
    assert figures.pool == "ngram"
    assert list(figures.per_step_accepted) == []


async def test_statistics_levels_are_obeyed(running: RunningGateway) -> None:
    steps, none = asking(13), asking(13)
    steps.statistics = messages.STATISTICS_LEVEL_STEPS
    none.statistics = messages.STATISTICS_LEVEL_NONE

    detailed = (await running.generate(steps)).speculation
    silent = await running.generate(none)

    assert list(detailed.per_step_accepted) == [2, 2, 2, 2]
    assert list(detailed.per_step_drafted) == [4, 4, 4, 4]
    assert not silent.HasField("speculation")


async def test_text_chat_and_ids_become_the_same_prompt(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    rendered = "<bos>user: hi\nassistant:"
    chat = messages.Chat(messages=[messages.ChatMessage(role="user", content="hi")])
    stopping = messages.StoppingOptions(max_tokens=1)

    await running.generate(messages.GenerateRequest(chat=chat, stopping=stopping))
    await running.generate(messages.GenerateRequest(text=rendered, stopping=stopping))
    tokenized = await running.stub.Tokenize(messages.TokenizeRequest(chat=chat))

    prompts = [list(start.prompt_token_ids) for start in verifier.starts]
    assert prompts[0] == prompts[1] == list(tokenized.token_ids)
    assert prompts[0] == tokenizer.encode(rendered, add_special_tokens=False).ids
    assert tokenized.context_length == 512


async def test_unset_sampling_takes_the_models_defaults_and_is_echoed(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """B010: with drafting and without, the same parameters are in effect."""
    verifier.info = model_info(
        default_sampling=types_pb2.SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.3)
    )
    await until_described(running, lambda info: info.default_sampling.top_k == 5)
    off = asking(2)
    off.sampling.temperature = 0.0
    off.drafting.mode = messages.DRAFTING_MODE_OFF

    plain = (await running.generate(asking(2))).sampling
    changed = (await running.generate(off)).sampling

    assert (plain.top_k, plain.seed) == (5, verifier.starts[0].sampling.seed)
    assert plain.temperature == pytest.approx(0.7)
    assert plain.repetition_penalty == pytest.approx(1.3)
    assert plain == verifier.starts[0].sampling
    assert changed.temperature == 0.0
    assert changed.top_k == 5


async def until_described(running: RunningGateway, condition: object) -> None:
    """Wait until the gateway has seen a changed description of its verifier."""
    verifiers = running.gateway.generator.verifiers
    async with asyncio.timeout(5):
        while not condition(verifiers.links[0].info):  # type: ignore[operator]
            await verifiers.wait_for_change()


async def test_the_clients_seed_is_used_and_unset_ones_differ(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """B028, B029."""
    seeded = asking(1)
    seeded.sampling.seed = 2**64 - 1

    answer = await running.generate(seeded)
    fresh = {(await running.generate(asking(1))).sampling.seed for _ in range(8)}

    assert answer.sampling.seed == verifier.starts[0].sampling.seed == 2**64 - 1
    assert len(fresh) == 8


async def test_n_outputs_have_seeds_of_their_own(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    request = asking(5)
    request.n, request.sampling.seed = 3, 77

    answer = await running.generate(request)

    assert [output.index for output in answer.outputs] == [0, 1, 2]
    assert [start.sampling.seed for start in verifier.starts] == [
        derive_seed(77, index) for index in range(3)
    ]
    assert len(verifier.batches[0].starts) == 3
    assert answer.usage.completion_tokens == 15
    assert answer.usage.prompt_tokens == 3


async def test_every_option_reaches_the_verifier(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """B022, B023, B096: nothing is dropped on the way."""
    request = asking(3)
    request.sampling.MergeFrom(
        types_pb2.SamplingParams(
            temperature=0.5,
            top_k=7,
            top_p=0.5,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={5: 2.0},
            seed=3,
            verification_rule=types_pb2.VERIFICATION_RULE_REJECTION,
        )
    )
    request.stopping.min_tokens = 2
    request.stopping.ignore_eos = True
    request.output.num_logprobs = 2
    request.drafting.max_draft_tokens = 5
    request.priority = types_pb2.PRIORITY_CLASS_INTERACTIVE
    request.predicted_output = "a"
    request.cache_salt = "salt"
    request.request_id = "mine"

    await running.stub.Generate(
        request,
        metadata=(
            ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"),
            ("tracestate", "vendor=opaque"),
        ),
        timeout=5,
    )

    start = verifier.starts[0]
    assert start.sampling == request.sampling
    assert start.limits.min_tokens == 2
    assert start.limits.ignore_eos
    assert start.num_logprobs == 2
    assert start.drafting == types_pb2.DraftingPolicy(pool="ngram", max_draft_tokens=5)
    assert start.priority == types_pb2.PRIORITY_CLASS_INTERACTIVE
    assert len(start.predicted_token_ids) == 1
    assert start.cache_salt == "salt"
    assert start.client_request_id == "mine"
    assert start.traceparent.startswith("00-aaaa")
    assert start.tracestate == "vendor=opaque"
    assert 0 < start.time_remaining.ToSeconds() <= 5


@pytest.mark.parametrize(
    "wanted",
    [
        types_pb2.StructuredOutput(json_schema="{}"),
        types_pb2.StructuredOutput(regex="a+"),
        types_pb2.StructuredOutput(grammar='start: "a"'),
        types_pb2.StructuredOutput(choice=types_pb2.Choice(options=["yes", "no"])),
    ],
)
async def test_a_constraint_reaches_the_verifier(
    running: RunningGateway, verifier: ScriptedVerifier, wanted: types_pb2.StructuredOutput
) -> None:
    request = asking(3)
    request.structured_output.CopyFrom(wanted)

    await running.generate(request)

    assert verifier.starts[0].structured_output == wanted


async def test_logprobs_come_back_one_per_token(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """B034."""

    def script(start: verify.Start) -> list[verify.AttachResponse]:
        response = step(start, [50, 51], finish=types_pb2.FINISH_REASON_LENGTH, is_prefill=True)
        response.results[0].logprobs.extend(
            types_pb2.TokenLogprobs(
                logprob=-0.5, top_logprobs=[types_pb2.TopLogprob(token_id=9, logprob=-0.25)]
            )
            for _ in range(2)
        )
        return [response]

    verifier.script = script
    request = asking(2)
    request.output.num_logprobs = 1

    answer = await running.generate(request)

    logprobs = answer.outputs[0].logprobs
    assert len(logprobs) == 2
    assert logprobs[0].top_logprobs[0].token_id == 9


async def test_tokens_are_gathered_into_fewer_deltas_when_asked(running: RunningGateway) -> None:
    request = asking(40)
    request.output.min_tokens_per_delta = 10

    events = await running.stream(request)

    deltas = [event.delta for event in events if event.HasField("delta")]
    assert all(len(delta.token_ids) >= 10 for delta in deltas[:-1])
    assert sum(len(delta.token_ids) for delta in deltas) == 40


async def test_more_tokens_than_asked_for_are_cut_off(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """What waits for a reader is bounded by max_tokens, whatever a verifier sends."""
    verifier.script = lambda start: [step(start, [50] * 400, is_prefill=True)]

    answer = await running.generate(asking(7))

    assert list(answer.outputs[0].token_ids) == [50] * 7
    assert answer.outputs[0].finish_reason == types_pb2.FINISH_REASON_LENGTH
    await verifier.until(lambda seen: seen.cancels)


async def test_the_last_answer_fills_the_context(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """B039."""
    verifier.script = model_steps()
    request = asking(100)
    request.token_ids.ids[:] = [9] * 508

    answer = await running.generate(request)

    assert len(answer.outputs[0].token_ids) == 4
    assert answer.outputs[0].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_models_are_described(running: RunningGateway) -> None:
    model = (await running.stub.GetModel(messages.GetModelRequest())).model
    listed = (await running.stub.ListModels(messages.ListModelsRequest())).models

    assert list(listed) == [model]
    assert (model.name, model.context_length, model.has_chat_template) == ("scripted", 512, True)
    assert (model.num_verifiers, model.num_ready_verifiers) == (1, 1)
    assert [pool.name for pool in model.draft_pools] == ["ngram"]


async def test_the_request_id_comes_back_in_the_trailers(running: RunningGateway) -> None:
    call = running.stub.Generate(messages.GenerateRequest(text="a", request_id="my-id"), timeout=5)

    answer = await call
    trailers = dict(await call.trailing_metadata())

    assert answer.request_id == "my-id"
    assert trailers["paceline-request-id"] == "my-id"


async def test_a_long_prompt_is_tokenized_without_stopping_the_others(
    running: RunningGateway,
) -> None:
    """The event loop goes on while a big text is tokenized in a thread."""
    generator = running.gateway.generator
    generator.limits = replace(generator.limits, max_bytes_per_token=4096)
    text = "the quick brown fox " * 60_000
    longest, done = 0.0, asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def watch() -> None:
        nonlocal longest
        while not done.is_set():
            before = clock()
            await asyncio.sleep(0.005)
            longest = max(longest, clock() - before)

    started = clock()
    watcher = asyncio.create_task(watch())
    token_ids = (await running.stub.Tokenize(messages.TokenizeRequest(text=text))).token_ids
    took = clock() - started
    done.set()
    await watcher

    assert len(token_ids) > 60_000
    assert longest < max(0.25, took / 2)
