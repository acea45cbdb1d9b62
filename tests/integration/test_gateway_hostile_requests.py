"""Requests that cannot be served: each gets the right status and names its field."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.protobuf import text_format

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as verify
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import RunningGateway, running_gateway, violated_fields
from tests.doubles.scripted_verifier import ScriptedVerifier, model_info, serving

pytestmark = pytest.mark.asyncio

HOSTILE = {
    "prompt": "sampling { seed: 1 }",
    "text": 'text: ""',
    "token_ids": "token_ids {}",
    "token_ids ": "token_ids { ids: 400 }",
    "token_ids  ": "token_ids { ids: 4294967295 }",
    "chat": "chat {}",
    "chat.messages[0].role": 'chat { messages { role: "root" content: "x" } }',
    "chat ": 'chat { messages { role: "user" content: "x" } messages { role: "system" } }',
    "sampling.temperature": 'text: "a" sampling { temperature: -0.1 }',
    "sampling.temperature ": 'text: "a" sampling { temperature: 10.5 }',
    "sampling.temperature  ": 'text: "a" sampling { temperature: nan }',
    "sampling.temperature   ": 'text: "a" sampling { temperature: inf }',
    "sampling.top_p": 'text: "a" sampling { top_p: 0 }',
    "sampling.top_p ": 'text: "a" sampling { top_p: 1.5 }',
    "sampling.min_p": 'text: "a" sampling { min_p: 1 }',
    "sampling.repetition_penalty": 'text: "a" sampling { repetition_penalty: 0 }',
    "sampling.presence_penalty": 'text: "a" sampling { presence_penalty: 2.5 }',
    "sampling.frequency_penalty": 'text: "a" sampling { frequency_penalty: -2.5 }',
    "sampling.logit_bias[3]": 'text: "a" sampling { logit_bias { key: 3 value: 101 } }',
    "sampling.logit_bias": 'text: "a" sampling { logit_bias { key: 400 value: 1 } }',
    "sampling.verification_rule": 'text: "a" sampling { verification_rule: 9 }',
    "stopping.max_tokens": 'text: "a" stopping { max_tokens: 0 }',
    "stopping.min_tokens": 'text: "a" stopping { max_tokens: 3 min_tokens: 4 }',
    "stopping.min_tokens ": 'text: "a" stopping { min_tokens: 4000 }',
    "stopping.stop[1]": 'text: "a" stopping { stop: "x" stop: "" }',
    "stopping.stop": 'text: "a" stopping {' + ' stop: "x"' * 17 + "}",
    "stopping.stop[0]": f'text: "a" stopping {{ stop: "{"x" * 257}" }}',
    "stopping.stop_token_ids": 'text: "a" stopping { stop_token_ids: 400 }',
    "stopping.stop_token_ids ": 'text: "a" stopping {' + " stop_token_ids: 1" * 129 + "}",
    "output.num_logprobs": 'text: "a" output { num_logprobs: 6 }',
    "output.min_tokens_per_delta": 'text: "a" output { min_tokens_per_delta: 5000 }',
    "drafting.mode": 'text: "a" drafting { mode: 9 }',
    "drafting.max_draft_tokens": 'text: "a" drafting { max_draft_tokens: 0 }',
    "drafting.workload": f'text: "a" drafting {{ workload: "{"x" * 65}" }}',
    "statistics": 'text: "a" statistics: 9',
    "priority": 'text: "a" priority: 9',
    "n": 'text: "a" n: 0',
    "n ": 'text: "a" n: 17',
    "n  ": 'text: "a" n: 2 sampling { seed: 1 } resume_token_ids: 5',
    "sampling.seed": 'text: "a" resume_token_ids: 5',
    "resume_token_ids": 'text: "a" sampling { seed: 1 } resume_token_ids: 400',
    "resume_token_ids ": 'text: "a" sampling { seed: 1 } stopping { max_tokens: 1 } '
    "resume_token_ids: 5 resume_token_ids: 6",
    "structured_output": 'text: "a" structured_output {}',
    "structured_output.regex": 'text: "a" structured_output { regex: "" }',
    "structured_output.choice": 'text: "a" structured_output { choice {} }',
    "structured_output.json_schema": 'text: "a" structured_output { json_schema: "'
    + "x" * 100_001
    + '" }',
    "structured_output.json_schema ": 'text: "a" structured_output { json_schema: "[]" }',
    "structured_output.json_schema  ": 'text: "a" structured_output { json_schema: " true" }',
    "structured_output.choice ": 'text: "a" structured_output { choice { options: ["a", ""] } }',
    "request_id": f'text: "a" request_id: "{"x" * 129}"',
    "request_id ": 'text: "a" request_id: "two\\nlines"',
    "session_id": f'text: "a" session_id: "{"x" * 257}"',
    "cache_salt": f'text: "a" cache_salt: "{"x" * 257}"',
    "model": f'text: "a" model: "{"x" * 257}"',
    "metadata": 'text: "a"' + "".join(f' metadata {{ key: "{i}" value: "" }}' for i in range(17)),
    "metadata ": f'text: "a" metadata {{ key: "k" value: "{"x" * 513}" }}',
    "predicted_output": f'text: "a" predicted_output: "{"x" * 3001}"',
    "text ": f'text: "{"x" * 3001}"',
    "text  ": f'text: "{"q!" * 400}"',
}


LITTLE = verify.Capabilities(verification_rules=[types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a chat template."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def info() -> verify.GetModelInfoResponse:
    """What the verifier can do."""
    return model_info()


@pytest_asyncio.fixture
async def running(folder: Path, info: verify.GetModelInfoResponse) -> AsyncIterator[RunningGateway]:
    """A gateway in front of a verifier that can do what ``info`` says."""
    async with (
        serving(ScriptedVerifier(info=info)) as address,
        running_gateway(folder, address, max_prompt_characters=3000) as gateway,
    ):
        yield gateway


def parse(text: str) -> messages.GenerateRequest:
    """Return the request in text form."""
    return text_format.Parse(text, messages.GenerateRequest())


async def test_each_field_out_of_range_is_refused_by_name(running: RunningGateway) -> None:
    """B022, B095: never ignored."""
    blamed, codes = {}, set()
    for field, text in HOSTILE.items():
        error = await running.failure(parse(text))
        blamed[field] = violated_fields(error)
        codes.add(error.code())

    assert blamed == {field: [field.strip()] for field in HOSTILE}
    assert codes == {grpc.StatusCode.INVALID_ARGUMENT}


async def test_a_refusal_names_value_range_and_remedy(running: RunningGateway) -> None:
    error = await running.failure(parse('text: "a" sampling { top_p: 1.5 }'))

    message = error.details() or ""
    assert message.startswith("sampling.top_p: 1.5 is not in (0, 1]; ")


async def test_a_stream_is_refused_like_a_unary_call(running: RunningGateway) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stream(parse('text: ""'))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_fields(refused.value) == ["text"]


async def test_a_prompt_must_leave_room_for_one_token(running: RunningGateway) -> None:
    fits, too_long = messages.GenerateRequest(), messages.GenerateRequest()
    fits.token_ids.ids.extend([5] * 511)
    too_long.token_ids.ids.extend([5] * 512)

    answer = await running.generate(fits)
    error = await running.failure(too_long)

    assert answer.usage.completion_tokens == 1
    assert violated_fields(error) == ["token_ids"]
    assert "512 tokens, at most 511" in (error.details() or "")


@pytest.mark.parametrize(
    ("text", "available"),
    [('text: "a" model: "other"', "scripted"), ('text: "a" drafting { pool: "other" }', "ngram")],
)
async def test_unknown_names_are_not_found_and_the_known_ones_are_named(
    running: RunningGateway, text: str, available: str
) -> None:
    error = await running.failure(parse(text))

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert f"available: {available}" in (error.details() or "")


@pytest.mark.parametrize("info", [model_info(capabilities=LITTLE)])
@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("sampling.repetition_penalty", "sampling { repetition_penalty: 1.5 }"),
        ("sampling.presence_penalty", "sampling { presence_penalty: 1 }"),
        ("sampling.frequency_penalty", "sampling { frequency_penalty: 1 }"),
        ("sampling.logit_bias", "sampling { logit_bias { key: 1 value: 1 } }"),
        ("sampling.verification_rule", "sampling { verification_rule: 2 }"),
        ("output.num_logprobs", "output { num_logprobs: 0 }"),
        ("structured_output", 'structured_output { regex: "a+" }'),
        ("sampling.seed", "sampling { temperature: 1 seed: 3 }"),
    ],
)
async def test_what_the_verifier_cannot_do_is_refused_and_never_ignored(
    running: RunningGateway, field: str, text: str
) -> None:
    """B022, B023."""
    error = await running.failure(parse(f'text: "a" {text}'))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_fields(error) == [field]


async def test_a_model_without_chat_template_refuses_chat(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model", chat_template=None)
    async with (
        serving(ScriptedVerifier()) as address,
        running_gateway(folder, address) as running,
    ):
        error = await running.failure(parse('chat { messages { role: "user" content: "x" } }'))
        described = await running.stub.GetModel(messages.GetModelRequest())

    assert violated_fields(error) == ["chat"]
    assert not described.model.has_chat_template


async def test_a_refused_request_reaches_no_verifier_and_holds_no_room(folder: Path) -> None:
    verifier = ScriptedVerifier()
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        for text in ("token_ids { ids: 400 }", 'text: "a" sampling { top_p: 2 }'):
            await running.failure(parse(text))
        admission = running.gateway.generator.admission

    assert verifier.batches == []
    assert admission.num_running == 0
