"""From a ``GenerateRequest`` message to a checked request. Nothing here depends on a model."""

from __future__ import annotations

import uuid
from typing import Final

from gateway.field_checks import (
    check_at_most,
    check_enum,
    check_positive,
    check_range,
    refusal,
)
from gateway.generation import (
    DraftingMode,
    DraftingWish,
    PriorityClass,
    StatisticsLevel,
    StructuredOutput,
)
from gateway.generation_request import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputForm,
    Prompt,
    Stopping,
    TextPrompt,
    TokenPrompt,
)
from gateway.sampling_codec import overrides_from_proto
from paceline.trace_context import NO_TRACE, TraceContext
from paceline.v1 import generation_service_pb2 as messages

MAX_REQUEST_ID_CHARACTERS: Final = 128
MAX_NAME_CHARACTERS: Final = 256
MAX_WORKLOAD_CHARACTERS: Final = 64
MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_STOP_TOKEN_IDS: Final = 128
MAX_METADATA_ENTRIES: Final = 16
MAX_METADATA_CHARACTERS: Final = 512
MAX_CHAT_MESSAGES: Final = 4096
MAX_OUTPUTS: Final = 16
MAX_CHOICES: Final = 1024
MAX_CONSTRAINT_CHARACTERS: Final = 100_000
MAX_TOKENS_PER_DELTA: Final = 4096
CHAT_ROLES: Final = ("system", "user", "assistant")


def request_from_proto(
    message: messages.GenerateRequest, *, trace: TraceContext = NO_TRACE
) -> GenerationRequest:
    """Return the request; raises ``InvalidRequest`` naming the first field that cannot be."""
    _check_names(message)
    return GenerationRequest(
        request_id=message.request_id or uuid.uuid4().hex,
        model=message.model,
        prompt=_prompt(message),
        sampling=overrides_from_proto(message.sampling),
        stopping=_stopping(message.stopping),
        output=_output(message.output),
        drafting=_drafting(message.drafting),
        statistics=check_enum("statistics", message.statistics, StatisticsLevel)
        or StatisticsLevel.SUMMARY,
        priority=check_enum("priority", message.priority, PriorityClass) or PriorityClass.STANDARD,
        num_outputs=_num_outputs(message),
        resume_token_ids=_resume_token_ids(message),
        predicted_output=message.predicted_output,
        structured_output=_structured_output(message),
        session_id=message.session_id,
        cache_salt=message.cache_salt,
        metadata=dict(message.metadata),
        trace=trace,
    )


def tokenize_prompt_from_proto(message: messages.TokenizeRequest) -> Prompt:
    """Return the prompt of a ``TokenizeRequest``."""
    match message.WhichOneof("prompt"):
        case "text":
            return _text(message.text)
        case "chat":
            return _chat(message.chat)
    raise refusal("prompt", "is not set", "set text or chat")


def _check_names(message: messages.GenerateRequest) -> None:
    check_at_most("request_id", len(message.request_id), MAX_REQUEST_ID_CHARACTERS, "characters")
    if not (message.request_id.isascii() and message.request_id.isprintable()):
        raise refusal(
            "request_id", "holds characters other than printable ASCII", "use letters and digits"
        )
    for field in ("model", "session_id", "cache_salt"):
        check_at_most(field, len(getattr(message, field)), MAX_NAME_CHARACTERS, "characters")
    check_at_most("metadata", len(message.metadata), MAX_METADATA_ENTRIES, "entries")
    for key, value in message.metadata.items():
        longest = max(len(key), len(value))
        check_at_most("metadata", longest, MAX_METADATA_CHARACTERS, "characters in an entry")


def _prompt(message: messages.GenerateRequest) -> Prompt:
    match message.WhichOneof("prompt"):
        case "text":
            return _text(message.text)
        case "token_ids":
            if not message.token_ids.ids:
                raise refusal("token_ids", "the prompt is empty", "send at least one token id")
            return TokenPrompt(tuple(message.token_ids.ids))
        case "chat":
            return _chat(message.chat)
    raise refusal("prompt", "is not set", "set one of text, token_ids and chat")


def _text(text: str) -> TextPrompt:
    if not text:
        raise refusal("text", "the prompt is empty", "send at least one character")
    return TextPrompt(text)


def _chat(message: messages.Chat) -> ChatPrompt:
    if not message.messages:
        raise refusal("chat", "the conversation is empty", "send at least one message")
    check_at_most("chat", len(message.messages), MAX_CHAT_MESSAGES, "messages")
    for index, entry in enumerate(message.messages):
        if entry.role not in CHAT_ROLES:
            field = f"chat.messages[{index}].role"
            raise refusal(
                field, f"{entry.role[:32]!r} is unknown", f"use one of {', '.join(CHAT_ROLES)}"
            )
    return ChatPrompt(
        tuple(ChatMessage(entry.role, entry.content) for entry in message.messages),
        message.add_generation_prompt if message.HasField("add_generation_prompt") else True,
    )


def _stopping(message: messages.StoppingOptions) -> Stopping:
    max_tokens = message.max_tokens if message.HasField("max_tokens") else None
    check_positive("stopping.max_tokens", max_tokens)
    if max_tokens is not None and message.min_tokens > max_tokens:
        raise refusal(
            "stopping.min_tokens",
            f"{message.min_tokens} is not in [0, {max_tokens}]",
            "choose at most stopping.max_tokens",
        )
    _check_stops(message)
    return Stopping(
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop=message.include_stop,
    )


def _check_stops(message: messages.StoppingOptions) -> None:
    check_at_most("stopping.stop", len(message.stop), MAX_STOP_STRINGS, "stop strings")
    for index, stop in enumerate(message.stop):
        field = f"stopping.stop[{index}]"
        if not stop:
            raise refusal(field, "the stop string is empty", "leave it out")
        check_at_most(field, len(stop), MAX_STOP_CHARACTERS, "characters")
    check_at_most("stopping.stop_token_ids", len(message.stop_token_ids), MAX_STOP_TOKEN_IDS, "ids")


def _output(message: messages.OutputOptions) -> OutputForm:
    check_at_most(
        "output.min_tokens_per_delta", message.min_tokens_per_delta, MAX_TOKENS_PER_DELTA, "tokens"
    )
    skip = message.skip_special_tokens if message.HasField("skip_special_tokens") else True
    return OutputForm(
        return_token_ids=message.return_token_ids,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        skip_special_tokens=skip,
        min_tokens_per_delta=max(message.min_tokens_per_delta, 1),
    )


def _drafting(message: messages.DraftingOptions) -> DraftingWish:
    limit = message.max_draft_tokens if message.HasField("max_draft_tokens") else None
    if limit == 0:
        raise refusal(
            "drafting.max_draft_tokens",
            "0 is not in [1, 4294967295]",
            "leave it unset for the server's limit, or set drafting.mode to OFF for no drafts",
        )
    check_at_most("drafting.pool", len(message.pool), MAX_NAME_CHARACTERS, "characters")
    mode = check_enum("drafting.mode", message.mode, DraftingMode) or DraftingMode.AUTO
    check_at_most("drafting.workload", len(message.workload), MAX_WORKLOAD_CHARACTERS, "characters")
    return DraftingWish(mode, message.pool, limit or 0, message.workload)


def _num_outputs(message: messages.GenerateRequest) -> int:
    if not message.HasField("n"):
        return 1
    check_range("n", message.n, f"[1, {MAX_OUTPUTS}]")
    return message.n


def _resume_token_ids(message: messages.GenerateRequest) -> tuple[int, ...]:
    if not message.resume_token_ids:
        return ()
    if not message.sampling.HasField("seed"):
        raise refusal("sampling.seed", "is not set, and a resume needs it", "send the echoed seed")
    if message.HasField("n") and message.n > 1:
        raise refusal(
            "n", f"{message.n} is not 1, and a resume is of one output", "resume each by itself"
        )
    return tuple(message.resume_token_ids)


def _structured_output(message: messages.GenerateRequest) -> StructuredOutput | None:
    if not message.HasField("structured_output"):
        return None
    given = message.structured_output
    kind = given.WhichOneof("constraint")
    if kind is None:
        raise refusal("structured_output", "is empty", "set one constraint or leave it unset")
    texts = tuple(given.choice.options) if kind == "choice" else (getattr(given, kind),)
    field = f"structured_output.{kind}"
    check_at_most(field, len(texts), MAX_CHOICES, "options")
    check_at_most(field, sum(map(len, texts)), MAX_CONSTRAINT_CHARACTERS, "characters")
    if not any(texts):
        raise refusal(field, "is empty", "say what the output has to look like")
    if not all(texts):
        raise refusal(field, f"option {texts.index('') + 1} is empty", "leave it out")
    if kind == "json_schema" and not texts[0].lstrip().startswith("{"):
        raise refusal(field, "is not a JSON object", 'send one such as {"type": "object"}')
    return StructuredOutput(kind, texts)
