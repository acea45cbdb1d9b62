"""A client's request after the checks that need no model. Not yet tokenized or routed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.generation import (
    DraftingWish,
    PriorityClass,
    SamplingOverrides,
    StatisticsLevel,
    StructuredOutput,
)
from paceline.trace_context import NO_TRACE, TraceContext


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt to tokenize, special tokens added as the tokenizer defines."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt in token ids, taken as they are."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, put into text by the model's chat template."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Stopping:
    """When generation ends, as given."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class OutputForm:
    """What comes back, and in which pieces."""

    return_token_ids: bool = False
    num_logprobs: int | None = None
    skip_special_tokens: bool = True
    min_tokens_per_delta: int = 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One call of ``Generate`` or ``StreamGenerate``."""

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    stopping: Stopping = field(default_factory=Stopping)
    output: OutputForm = field(default_factory=OutputForm)
    drafting: DraftingWish = field(default_factory=DraftingWish)
    statistics: StatisticsLevel = StatisticsLevel.SUMMARY
    priority: PriorityClass = PriorityClass.STANDARD
    num_outputs: int = 1
    resume_token_ids: tuple[int, ...] = ()
    predicted_output: str = ""
    structured_output: StructuredOutput | None = None
    session_id: str = ""
    cache_salt: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    trace: TraceContext = NO_TRACE
    tenant: str = ""

    def as_one_piece(self) -> GenerationRequest:
        """Return the request with each output delivered in a single piece, at its end."""
        return replace(self, output=replace(self.output, min_tokens_per_delta=1 << 32))
