"""What a client can ask for, and the message it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from typing import Any, Final, Literal, TypedDict, TypeVar

from google.protobuf.message import Message

from paceline.channels import MAX_MESSAGE_BYTES
from paceline.errors import InvalidRequest
from paceline.events import VerificationRule
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.wanted_values import wanted_value

DraftingMode = Literal["auto", "on", "off"]
StatisticsLevel = Literal["none", "summary", "steps"]
Priority = Literal["batch", "standard", "interactive"]

_MessageT = TypeVar("_MessageT", bound=Message)

_DRAFTING_MODES: Final = {
    "auto": messages.DRAFTING_MODE_AUTO,
    "on": messages.DRAFTING_MODE_ON,
    "off": messages.DRAFTING_MODE_OFF,
}
_STATISTICS_LEVELS: Final = {
    "none": messages.STATISTICS_LEVEL_NONE,
    "summary": messages.STATISTICS_LEVEL_SUMMARY,
    "steps": messages.STATISTICS_LEVEL_STEPS,
}
_PRIORITIES: Final = {
    "batch": types_pb2.PRIORITY_CLASS_BATCH,
    "standard": types_pb2.PRIORITY_CLASS_STANDARD,
    "interactive": types_pb2.PRIORITY_CLASS_INTERACTIVE,
}
_RULES: Final = {
    "sample_and_match": types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH,
    "rejection": types_pb2.VERIFICATION_RULE_REJECTION,
}


class ChatMessage(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class PromptForms(TypedDict, total=False):
    """The forms of a prompt other than text; a request has exactly one form."""

    token_ids: Sequence[int] | None
    """Taken as they are; no special tokens are added."""
    messages: Sequence[ChatMessage] | None
    """A conversation, put into words by the model's own chat template."""


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen. What is left out takes the model's default."""

    temperature: float | None
    """0 is greedy; up to 10."""
    top_k: int | None
    """0 switches it off."""
    top_p: float | None
    """In (0, 1]; 1 switches it off."""
    min_p: float | None
    """In [0, 1); 0 switches it off."""
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    """Unsigned, 64 bits. The same seed gives the same tokens, with drafting or without."""
    verification_rule: VerificationRule | None
    """"rejection" draws from the same distribution, but other tokens as drafts come and go."""


class StoppingOptions(TypedDict, total=False):
    """When generation ends."""

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    """Generation ends when the text holds one of these."""
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop: bool | None


class OutputOptions(TypedDict, total=False):
    """What comes back, and in which pieces."""

    return_token_ids: bool | None
    """Without it streamed pieces bring text only; ``generate`` of the clients sets it."""
    num_logprobs: int | None
    """None: no log-probabilities; 0: of the emitted token; n: and of the n best."""
    skip_special_tokens: bool | None
    min_tokens_per_delta: int | None


class DraftingOptions(TypedDict, total=False):
    """
    Whether drafts are used.

    They change the speed, never the tokens, except under the verification rule "rejection".
    """

    drafting: DraftingMode | None
    pool: str | None
    """Draft pool; None: the gateway's default."""
    max_draft_tokens: int | None
    workload: str | None
    """A name for requests of one kind, such as "code": the best pool is measured for each."""


class StructuredOptions(TypedDict, total=False):
    """
    What the whole output has to look like; at most one of these.

    Drafts are verified under the constraint like any others, so it changes no token either.
    """

    json_schema: str | Mapping[str, Any] | None
    """A JSON Schema, as a mapping or as JSON text; ``{}`` is any JSON value."""
    regex: str | None
    """A regular expression that matches the whole output (Rust syntax, no look-around)."""
    grammar: str | None
    """A context-free grammar in Lark notation."""
    choice: Sequence[str] | None
    """The output is one of these texts."""


class HandlingOptions(TypedDict, total=False):
    """How the request is treated on its way."""

    model: str | None
    """None: the only model served."""
    request_id: str | None
    statistics: StatisticsLevel | None
    priority: Priority | None
    n: int | None
    """Number of outputs, each with its own seed derived from the request's."""
    predicted_output: str | None
    """A guess of the output: a further source of drafts."""
    session_id: str | None
    """Keeps the requests of one conversation on one verifier."""
    cache_salt: str | None
    metadata: Mapping[str, str] | None
    """Logged with the request, never interpreted."""
    resume_token_ids: Sequence[int] | None
    """Ids already received from a gateway that was lost; needs the echoed ``seed``."""


class GenerationOptions(
    PromptForms,
    SamplingOptions,
    StoppingOptions,
    OutputOptions,
    DraftingOptions,
    StructuredOptions,
    HandlingOptions,
    total=False,
):
    """Everything that a request can say besides a text prompt."""


MAX_TIMEOUT_SECONDS: Final = 365 * 86_400.0


def request_to_proto(
    prompt: str | None, options: GenerationOptions | Mapping[str, Any]
) -> messages.GenerateRequest:
    """Return the message of a request; raises ``InvalidRequest`` naming the option at fault."""
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(given.keys() - GenerationOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}")
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    request = _filled(messages.GenerateRequest(), given, _HANDLING)
    _fill_prompt(request, prompt, given)
    request.sampling.CopyFrom(_filled(types_pb2.SamplingParams(), given, _SAMPLING))
    request.stopping.CopyFrom(_filled(messages.StoppingOptions(), given, _STOPPING))
    request.output.CopyFrom(_filled(messages.OutputOptions(), given, _OUTPUT))
    request.drafting.CopyFrom(_filled(messages.DraftingOptions(), given, _DRAFTING))
    _fill_structured_output(request, given)
    if "drafting" in given:
        request.drafting.mode = _choice("drafting", given["drafting"], _DRAFTING_MODES)
    if "verification_rule" in given:
        rule = _choice("verification_rule", given["verification_rule"], _RULES)
        request.sampling.verification_rule = rule
    if "statistics" in given:
        request.statistics = _choice("statistics", given["statistics"], _STATISTICS_LEVELS)
    if "priority" in given:
        request.priority = _choice("priority", given["priority"], _PRIORITIES)
    _check_size(request)
    return request


def tokenize_request_to_proto(
    text: str | None, chat: Sequence[ChatMessage] | None, model: str
) -> messages.TokenizeRequest:
    """Return the message that asks for the ids of a text or of a conversation."""
    if (text is None) == (chat is None):
        raise InvalidRequest("give a text or messages, and not both", field="prompt")
    if chat is not None:
        request = messages.TokenizeRequest(model=model, chat=_chat(chat))
    else:
        request = messages.TokenizeRequest(model=model, text=_text(text or ""))
    _check_size(request)
    return request


_SAMPLING: Final = frozenset(SamplingOptions.__annotations__) - {"verification_rule"}
_STOPPING: Final = frozenset(StoppingOptions.__annotations__)
_OUTPUT: Final = frozenset(OutputOptions.__annotations__)
_DRAFTING: Final = frozenset(DraftingOptions.__annotations__) - {"drafting"}
_STRUCTURED: Final = tuple(StructuredOptions.__annotations__)
_HANDLING: Final = frozenset(HandlingOptions.__annotations__) - {"statistics", "priority"}


def _fill_prompt(
    request: messages.GenerateRequest, prompt: str | None, given: Mapping[str, Any]
) -> None:
    forms = [form for form in ("token_ids", "messages") if form in given]
    if (prompt is not None) + len(forms) != 1:
        raise InvalidRequest(
            "give the prompt as text, as token_ids or as messages, and in one form only",
            field="prompt",
        )
    if prompt is not None:
        request.text = _text(prompt)
    elif "token_ids" in given:
        token_ids = {"token_ids": {"ids": given["token_ids"]}}
        _filled(request, token_ids, frozenset({"token_ids"}))
    else:
        request.chat.CopyFrom(_chat(given["messages"]))


def _fill_structured_output(request: messages.GenerateRequest, given: Mapping[str, Any]) -> None:
    names = [name for name in _STRUCTURED if name in given]
    if len(names) > 1:
        raise InvalidRequest(
            f"give at most one of {', '.join(_STRUCTURED)}, not {' and '.join(names)}",
            field=names[1],
        )
    for name in names:
        value = _constraint(name, given[name])
        wanted = _filled(types_pb2.StructuredOutput(), {name: value}, frozenset({name}))
        request.structured_output.CopyFrom(wanted)


def _constraint(name: str, value: Any) -> Any:
    """Return the value of the message's field."""
    if name == "choice":
        if isinstance(value, str):
            raise InvalidRequest("choice is a list of texts, not one text", field=name)
        return {"options": value}
    if name == "json_schema" and not isinstance(value, str):
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"json_schema: {error}", field=name) from None
        except RecursionError:
            raise InvalidRequest("json_schema is nested too deeply", field=name) from None
    return value


def checked_timeout(seconds: float) -> float:
    """Return a timeout that a deadline can be made of; a year is as good as for ever."""
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise InvalidRequest(
            f"timeout is {seconds!r}; give a number of seconds above 0", field="timeout"
        )
    return min(seconds, MAX_TIMEOUT_SECONDS)


def _text(prompt: object) -> str:
    """Return a prompt that UTF-8 can carry; a lone surrogate, as from undecoded bytes, is none."""
    if not isinstance(prompt, str):
        raise InvalidRequest(f"prompt is text, not {type(prompt).__name__}", field="prompt")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("prompt is not valid UTF-8 text", field="prompt") from None
    return prompt


def _chat(conversation: Sequence[ChatMessage]) -> messages.Chat:
    try:
        return messages.Chat(messages=[messages.ChatMessage(**message) for message in conversation])
    except UnicodeEncodeError:
        raise InvalidRequest("messages: is not valid UTF-8 text", field="messages") from None
    except (TypeError, ValueError):
        raise InvalidRequest(
            "messages: give a list of mappings, each with the texts role and content",
            field="messages",
        ) from None


def _filled(message: _MessageT, given: Mapping[str, Any], names: frozenset[str]) -> _MessageT:
    for name in names & given.keys():
        try:
            message.MergeFrom(type(message)(**{name: given[name]}))
        except UnicodeEncodeError:
            raise InvalidRequest(f"{name}: is not valid UTF-8 text", field=name) from None
        except (TypeError, ValueError):
            field: Any = message.DESCRIPTOR.fields_by_name[name]
            raise InvalidRequest(f"{name}: give {wanted_value(field)}", field=name) from None
    return message


def _check_size(request: Message) -> None:
    """Refuse what no gateway would read, naming the largest field."""
    num_bytes = request.ByteSize()
    if num_bytes <= MAX_MESSAGE_BYTES:
        return
    sizes = {
        field.name: value.ByteSize() if isinstance(value, Message) else len(value)
        for field, value in request.ListFields()
        if isinstance(value, Message | Sized)
    }
    name = max(sizes, key=lambda field: sizes[field])
    if name == "structured_output":
        name = f"{name}.{getattr(request, name).WhichOneof('constraint')}"
    raise InvalidRequest(
        f"{name}: the request has {num_bytes} bytes, at most {MAX_MESSAGE_BYTES}; send less",
        field=name,
    )


def _choice(name: str, value: object, choices: Mapping[str, Any]) -> Any:
    try:
        return choices[str(value)]
    except KeyError:
        allowed = ", ".join(choices)
        raise InvalidRequest(f"{name} is one of {allowed}, not {value!r}", field=name) from None
