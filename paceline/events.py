"""What a client gets back: typed values. Not how they travel (see ``generation_codec``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

VerificationRule = Literal["sample_and_match", "rejection"]


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the end of the context."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    UNKNOWN = "unknown"
    """A reason that this version does not know."""

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters in effect; ``seed`` is set even when the request left it open."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    verification_rule: VerificationRule = "sample_and_match"


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted."""

    request_id: str
    model: str
    sampling: Sampling
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities of one emitted token and of the best ones at its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), best first."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one output; it may be empty while a character or stop string is undecided."""

    text: str
    token_ids: tuple[int, ...] = ()
    """The new tokens, when asked for with ``return_token_ids``."""
    completion_tokens: int = 0
    """Tokens emitted so far for this output."""
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per new token, when asked for with ``num_logprobs``."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One output is complete."""

    finish_reason: FinishReason
    matched_stop: str | int | None = None
    """The stop string or stop token id that ended generation."""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculation figures of one request, named as vLLM's per-request record."""

    num_spec_steps: int = 0
    """Verification steps; the prefill is not one."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()
    """Index j: steps that accepted j drafts."""
    mean_acceptance_length: float = 0.0
    """1 + accepted / steps."""
    draft_acceptance_rate: float = 0.0
    """Accepted / drafted."""
    num_empty_steps: int = 0
    """Steps of a drafting request that found no usable draft."""
    per_step_accepted: tuple[int, ...] = ()
    per_step_drafted: tuple[int, ...] = ()
    pool: str = ""
    """The draft pool in use last; empty: none."""
    fallbacks: tuple[str, ...] = ()
    """Why steps ran without drafts, first met first: ``load``, ``unreachable``, ..."""
    pool_cause: str = ""
    """Why that pool: ``requested``, ``routed``, ``default``, ``measured`` or ``trial``."""
    workload: str = ""
    """The kind of text that the request counted as, given or derived."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of one request went, as the gateway saw it."""

    queue_seconds: float = 0.0
    time_to_first_token_seconds: float = 0.0
    total_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The last event of a stream."""

    usage: Usage = field(default_factory=Usage)
    speculation: Speculation = field(default_factory=Speculation)
    timing: Timing = field(default_factory=Timing)


Event = Started | Delta | Finished | Summary


@dataclass(frozen=True, slots=True)
class Output:
    """One complete output."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    matched_stop: str | int | None = None
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """The whole answer to one request."""

    request_id: str
    model: str
    sampling: Sampling
    outputs: tuple[Output, ...]
    usage: Usage
    speculation: Speculation
    timing: Timing

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the first output."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first output ended."""
        return self.outputs[0].finish_reason

    @property
    def seed(self) -> int:
        """The seed in effect: with it the same request gives the same tokens again."""
        return self.sampling.seed


@dataclass(frozen=True, slots=True)
class DraftPool:
    """One draft pool of a model and whether it can be used now."""

    name: str
    available: bool
    cause: str
    """Why it is not available: ``unreachable``, ``mismatch``, ...; empty when it is."""
    detail: str
    drafter: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a gateway serves."""

    name: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    has_chat_template: bool
    engine: str
    draft_pools: tuple[DraftPool, ...]
    num_verifiers: int
    num_ready_verifiers: int


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The token ids of a prompt, as generation would see them."""

    token_ids: tuple[int, ...]
    context_length: int
