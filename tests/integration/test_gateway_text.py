"""Where an output's text begins and ends: stop strings, stop tokens, resumes."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from tests.doubles.gateway_requests import asking
from tests.doubles.running_gateway import RunningGateway, violated_fields
from tests.doubles.scripted_verifier import (
    ScriptedVerifier,
    step,
    steps_of,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("include_stop", [False, True])
async def test_a_stop_string_ends_text_ids_and_usage_wherever_it_falls_in_a_run(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    tokenizer: Tokenizer,
    width: int,
    include_stop: bool,
) -> None:
    """B038, B044: and the verifier is told at once."""
    token_ids = tokenizer.encode("alpha beta STOP gamma delta", add_special_tokens=False).ids
    verifier.script = steps_of(token_ids, width)

    answer = await running.generate(asking(100, stop=("STOP",), include_stop=include_stop))

    output, figures = answer.outputs[0], answer.speculation
    kept = list(output.token_ids)
    assert output.text == ("alpha beta STOP" if include_stop else "alpha beta ")
    assert output.finish_reason == types_pb2.FINISH_REASON_STOP
    assert output.matched_stop.text == "STOP"
    assert kept == token_ids[: len(kept)]
    assert tokenizer.decode(kept) == "alpha beta STOP"
    assert answer.usage.completion_tokens == len(kept)
    accepted = sum(j * count for j, count in enumerate(figures.acceptance_histogram))
    assert figures.num_accepted_draft_tokens == accepted <= figures.num_draft_tokens
    assert accepted + 1 <= len(kept)


async def test_a_stop_string_cancels_at_the_verifier(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("one STOP " + "x " * 200, add_special_tokens=False).ids
    verifier.script, verifier.pause_seconds = steps_of(token_ids, 1), 0.01

    await running.generate(asking(400, stop=("STOP",)))

    await verifier.until(lambda seen: seen.cancels)
    assert verifier.cancels == [verifier.starts[0].request_id]


async def test_min_tokens_puts_stop_strings_off(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("aXbXc", add_special_tokens=False).ids
    verifier.script = steps_of(token_ids, 2)
    request = asking(100, stop=("X",))
    request.stopping.min_tokens = 3

    answer = await running.generate(request)

    assert answer.outputs[0].text == "aXb"


@pytest.mark.parametrize(("include_stop", "expected"), [(False, "ab"), (True, "ab!")])
async def test_a_stop_token_is_in_the_ids_and_only_on_demand_in_the_text(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    tokenizer: Tokenizer,
    include_stop: bool,
    expected: str,
) -> None:
    """B036."""
    token_ids = tokenizer.encode("ab!", add_special_tokens=False).ids
    verifier.script = lambda start: [
        step(
            start,
            token_ids,
            finish=types_pb2.FINISH_REASON_STOP,
            is_prefill=True,
            stop_token_id=token_ids[-1],
        )
    ]
    request = asking(100, include_stop=include_stop)
    request.stopping.stop_token_ids.append(token_ids[-1])

    answer = await running.generate(request)

    output = answer.outputs[0]
    assert output.text == expected
    assert list(output.token_ids) == token_ids
    assert output.matched_stop.token_id == token_ids[-1]
    assert output.finish_reason == types_pb2.FINISH_REASON_STOP
    assert list(verifier.starts[0].limits.stop_token_ids) == [token_ids[-1]]


async def test_a_resume_sends_only_what_follows_with_the_text_in_step(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("price: 5€ or 😀 so", add_special_tokens=False).ids
    verifier.script = lambda start: steps_of(token_ids[len(start.emitted_token_ids) :])(start)
    request = asking(len(token_ids))
    request.sampling.seed = 5
    whole = (await running.generate(request)).outputs[0]

    for cut in range(1, len(token_ids)):
        resumed = messages.GenerateRequest()
        resumed.CopyFrom(request)
        resumed.resume_token_ids.extend(token_ids[:cut])
        answer = await running.generate(resumed)

        held_back = tokenizer.decode(token_ids[:cut]).rstrip("\ufffd")
        assert held_back + answer.outputs[0].text == whole.text
        assert list(answer.outputs[0].token_ids) == token_ids[cut:]
        assert answer.usage.completion_tokens == len(token_ids)


async def test_a_resume_of_a_finished_output_finishes_without_a_verifier(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    request = asking(4)
    request.sampling.seed = 5
    request.resume_token_ids.extend([40, 41, 42, 43])

    answer = await running.generate(request)

    assert verifier.starts == []
    assert answer.outputs[0].text == ""
    assert answer.outputs[0].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_resume_that_holds_a_stop_string_already_is_stopped_and_costs_nothing(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    emitted = tokenizer.encode("one two three", add_special_tokens=False).ids
    request = asking(len(emitted) + 4)
    request.sampling.seed = 5
    request.stopping.stop.append("two")
    request.resume_token_ids.extend(emitted)

    answer = await running.generate(request)

    assert verifier.starts == []
    assert answer.outputs[0].text == ""
    assert answer.outputs[0].finish_reason == types_pb2.FINISH_REASON_STOP
    requests = running.gateway.generator.counters.snapshot()["requests"]
    assert requests == {("Generate", "OK"): 1}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (messages.GenerateRequest(text="a" * 9000), "text"),
        (messages.GenerateRequest(text="\N{SNOWMAN}" * 2800), "text"),
        (
            messages.GenerateRequest(
                chat=messages.Chat(messages=[messages.ChatMessage(role="user", content="a" * 9000)])
            ),
            "chat",
        ),
        (messages.GenerateRequest(text="a", predicted_output="a" * 9000), "predicted_output"),
    ],
)
async def test_a_text_that_cannot_fit_the_context_is_refused_before_it_is_tokenized(
    running: RunningGateway,
    monkeypatch: pytest.MonkeyPatch,
    request_: messages.GenerateRequest,
    field: str,
) -> None:
    """Of a context of 512 tokens at 16 bytes each."""
    tokenizer = running.gateway.generator.tokenizer
    encode, seen = tokenizer.encode_text, []

    async def watched(text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        seen.append(text)
        return await encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode_text", watched)

    error = await running.failure(request_)

    assert violated_fields(error) == [field]
    assert "at most 8192" in (error.details() or "")
    assert all(len(text) == 1 for text in seen)
