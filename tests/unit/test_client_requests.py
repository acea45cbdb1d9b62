from __future__ import annotations

from typing import Any

import pytest

from paceline.client import credential_metadata
from paceline.errors import ConfigurationError, InvalidRequest
from paceline.generation_request import (
    checked_timeout,
    request_to_proto,
    tokenize_request_to_proto,
)
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2


def deep_schema(depth: int) -> dict[str, Any]:
    """Return a schema nested so deeply."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_every_option_reaches_its_field() -> None:
    request = request_to_proto(
        "hello",
        {
            "temperature": 0.0,
            "top_k": 0,
            "seed": 2**64 - 1,
            "logit_bias": {5: -100.0},
            "verification_rule": "rejection",
            "max_tokens": 9,
            "stop": "\n\n",
            "stop_token_ids": [1, 2],
            "ignore_eos": True,
            "return_token_ids": True,
            "num_logprobs": 0,
            "drafting": "off",
            "pool": "ngram",
            "max_draft_tokens": 0,
            "statistics": "steps",
            "priority": "batch",
            "metadata": {"team": "a"},
            "predicted_output": "world",
        },
    )

    assert request.text == "hello"
    assert request.sampling.seed == 2**64 - 1
    assert request.sampling.logit_bias == {5: -100.0}
    assert request.sampling.verification_rule == types_pb2.VERIFICATION_RULE_REJECTION
    assert list(request.stopping.stop) == ["\n\n"]
    assert list(request.stopping.stop_token_ids) == [1, 2]
    assert request.stopping.ignore_eos
    assert request.drafting.mode == messages.DRAFTING_MODE_OFF
    assert request.drafting.pool == "ngram"
    assert request.statistics == messages.STATISTICS_LEVEL_STEPS
    assert request.priority == types_pb2.PRIORITY_CLASS_BATCH
    assert request.metadata == {"team": "a"}
    assert request.predicted_output == "world"


def test_zero_is_sent_and_left_out_is_not() -> None:
    """A zero means something: greedy, off, or only the emitted token."""
    given = request_to_proto(
        "x", {"temperature": 0.0, "top_k": 0, "num_logprobs": 0, "max_draft_tokens": 0}
    )
    left_out = request_to_proto("x", {"temperature": None})

    assert given.sampling.HasField("temperature")
    assert given.sampling.HasField("top_k")
    assert given.output.HasField("num_logprobs")
    assert given.drafting.HasField("max_draft_tokens")
    assert not left_out.sampling.HasField("temperature")
    assert not left_out.sampling.HasField("seed")


def test_prompt_may_be_ids_or_a_conversation() -> None:
    ids = request_to_proto(None, {"token_ids": [0, 5]})
    chat = request_to_proto(None, {"messages": [{"role": "user", "content": "hi"}]})

    assert list(ids.token_ids.ids) == [0, 5]
    assert chat.chat.messages[0].content == "hi"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [(None, {}), ("x", {"token_ids": [1]}), (None, {"token_ids": [1], "messages": []})],
)
def test_prompt_in_no_form_or_two_is_refused(prompt: str | None, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="one form") as refused:
        request_to_proto(prompt, options)

    assert refused.value.field == "prompt"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("max_tokens", "many"),
        ("token_ids", [-3]),
        ("drafting", "maybe"),
        ("verification_rule", "typical"),
        ("statistics", "all"),
        ("messages", [{"role": "user", "text": "hi"}]),
    ],
)
def test_value_that_cannot_be_sent_names_its_option(name: str, value: object) -> None:
    prompt = None if name in {"token_ids", "messages"} else "x"

    with pytest.raises(InvalidRequest) as refused:
        request_to_proto(prompt, {name: value})

    assert refused.value.field == name


@pytest.mark.parametrize(
    ("option", "value", "sent"),
    [
        ("json_schema", {"const": "ä"}, {"json_schema": '{"const": "ä"}'}),
        ("json_schema", '{"type": "null"}', {"json_schema": '{"type": "null"}'}),
        ("json_schema", {}, {"json_schema": "{}"}),
        ("regex", "a+", {"regex": "a+"}),
        ("grammar", 'start: "x"', {"grammar": 'start: "x"'}),
        ("choice", ("yes", "no"), {"choice": types_pb2.Choice(options=["yes", "no"])}),
    ],
)
def test_constraint_is_sent_as_structured_output(
    option: str, value: object, sent: dict[str, Any]
) -> None:
    request = request_to_proto("x", {option: value})

    assert request.structured_output == types_pb2.StructuredOutput(**sent)


def test_without_a_constraint_nothing_is_said_of_structure() -> None:
    request = request_to_proto("x", {"regex": None, "choice": None})

    assert not request.HasField("structured_output")


@pytest.mark.parametrize(
    ("options", "field", "told"),
    [
        ({"regex": "a", "choice": ["b"]}, "choice", "at most one of json_schema, regex"),
        ({"choice": "yes"}, "choice", "not one text"),
        ({"choice": [1]}, "choice", "choice: "),
        ({"regex": 5}, "regex", "regex: give a text"),
        ({"json_schema": {"const": b"x"}}, "json_schema", "json_schema: "),
        ({"json_schema": object()}, "json_schema", "json_schema: "),
        ({"json_schema": deep_schema(20_000)}, "json_schema", "nested too deeply"),
        ({"regex": "\udcff"}, "regex", "regex: is not valid UTF-8 text"),
        ({"grammar": b"\xff"}, "grammar", "grammar: "),
        ({"choice": ["a", "\udcff"]}, "choice", "choice: is not valid UTF-8 text"),
        ({"choice": [None]}, "choice", "choice: give a list of texts"),
        ({"choice": 5}, "choice", "choice: "),
        ({"regex": "x" * 21_000_000}, "structured_output.regex", "at most 20971520; send less"),
        ({"predicted_output": "x" * 21_000_000}, "predicted_output", "at most 20971520; send"),
    ],
)
def test_constraint_that_cannot_be_sent_names_its_option(
    options: dict[str, Any], field: str, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        request_to_proto("x", options)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_tokens": "3"}, "max_tokens: give an integer from 0 to 4294967295"),
        ({"max_tokens": -1}, "max_tokens: give an integer from 0 to 4294967295"),
        ({"seed": 2**64}, "seed: give an integer from 0 to 18446744073709551615"),
        ({"temperature": "hot"}, "temperature: give a number"),
        ({"ignore_eos": "yes"}, "ignore_eos: give True or False"),
        ({"pool": 3}, "pool: give a text"),
        ({"stop": 5}, "stop: give a list of texts"),
        ({"resume_token_ids": [1.5]}, "resume_token_ids: give a list of integers from 0"),
        ({"logit_bias": {"a": 1}}, "logit_bias: give a mapping from integers from 0 to .* numbers"),
        ({"metadata": {"a": 1}}, "metadata: give a mapping from texts to texts"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_the_right_one(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        request_to_proto("x", options)

    assert [refused.value.field] == list(options)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "5", None])
def test_a_timeout_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match="give a number of seconds above 0") as refused:
        checked_timeout(seconds)

    assert refused.value.field == "timeout"


@pytest.mark.parametrize("key", ["", "two words", "two\nlines", "caf\u00e9", "x" * 8193, b"key"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_told(key: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^api_key: an API key or token is") as refused:
        credential_metadata(key)

    assert not key or str(key) not in str(refused.value)


def test_a_key_is_shown_as_a_bearer_token() -> None:
    assert credential_metadata("abc.d-e_f") == (("authorization", "Bearer abc.d-e_f"),)
    assert credential_metadata(None) == ()


def test_a_conversation_that_is_too_large_names_itself() -> None:
    conversation = [{"role": "user", "content": "x" * 21_000_000}]

    with pytest.raises(InvalidRequest, match="at most 20971520") as refused:
        request_to_proto(None, {"messages": conversation})
    with pytest.raises(InvalidRequest, match="at most 20971520"):
        tokenize_request_to_proto("x" * 21_000_000, None, "")

    assert refused.value.field == "chat"


def test_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'tempreature'"):
        request_to_proto("x", {"tempreature": 1.0})
