"""What a generation is asked to do, as values. No protobuf, no text handling, no transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal, NamedTuple

from paceline.trace_context import NO_TRACE, TraceContext


class FinishReason(IntEnum):
    """Why generation ended; numbers as on the wire."""

    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5


class DraftFallback(IntEnum):
    """Why a request, or a part of it, ran without drafts; numbers as on the wire."""

    UNSPECIFIED = 0
    REQUESTED = 1
    LOAD = 2
    UNREACHABLE = 3
    NO_GAIN = 4
    MISMATCH = 5
    NO_POOL = 6
    DEMOTED = 7
    PRIORITY = 8
    UNSUPPORTED = 9
    TOO_LONG = 10


class PoolCause(IntEnum):
    """Why a request drafts from one pool and not from another; numbers as on the wire."""

    UNSPECIFIED = 0
    REQUESTED = 1
    ROUTED = 2
    DEFAULT = 3
    MEASURED = 4
    TRIAL = 5


class PriorityClass(IntEnum):
    """Who goes first when there is not room for all; numbers as on the wire."""

    BATCH = 1
    STANDARD = 2
    INTERACTIVE = 3


class VerificationRule(IntEnum):
    """How drafts are accepted; numbers as on the wire."""

    SAMPLE_AND_MATCH = 1
    REJECTION = 2


class DraftingMode(IntEnum):
    """Who decides whether to draft; numbers as on the wire."""

    AUTO = 1
    ON = 2
    OFF = 3


class StatisticsLevel(IntEnum):
    """How much a request tells about its speculation; numbers as on the wire."""

    NONE = 1
    SUMMARY = 2
    STEPS = 3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; every field resolved."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    verification_rule: VerificationRule = VerificationRule.SAMPLE_AND_MATCH

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the distribution of later ones."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """Sampling fields as given; None leaves a field to the model's default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    verification_rule: VerificationRule | None = None

    def over(self, lower: Sampling) -> Sampling:
        """Return ``lower`` with the fields that are given here put over it."""
        given = {
            name: value
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None
        }
        return replace(lower, **given)


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """When generation ends, in tokens."""

    max_tokens: int
    """Tokens already emitted before a resume are included."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the whole output has to look like."""

    kind: Literal["json_schema", "regex", "grammar", "choice"]
    texts: tuple[str, ...]
    """The schema, expression or grammar; for ``choice`` the options."""


@dataclass(frozen=True, slots=True)
class DraftingWish:
    """What the client asked for about drafts."""

    mode: DraftingMode = DraftingMode.AUTO
    pool: str = ""
    """Empty: the gateway chooses."""
    max_draft_tokens: int = 0
    """0: the verifier's own limit."""
    workload: str = ""
    """The kind of text: which pool is best is measured for each."""


@dataclass(frozen=True, slots=True)
class DraftingChoice:
    """Which drafts a sequence uses from now on."""

    pool: str = ""
    """Empty: none."""
    max_draft_tokens: int = 0
    fallback: DraftFallback = DraftFallback.UNSPECIFIED
    """Why drafts are not used or cannot be expected."""
    cause: PoolCause = field(default=PoolCause.UNSPECIFIED, compare=False)
    """Why this pool; verifiers are not told."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """
    One sequence as a verifier is asked for it.

    It can be resumed anywhere: what follows is a function of the prompt, the emitted tokens, the
    sampling parameters and their seed.
    """

    prompt_token_ids: tuple[int, ...]
    emitted_token_ids: tuple[int, ...]
    sampling: Sampling
    limits: TokenLimits
    priority: PriorityClass = PriorityClass.STANDARD
    tenant: str = ""
    cache_salt: str = ""
    predicted_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None
    structured_output: StructuredOutput | None = None
    client_request_id: str = ""
    trace: TraceContext = NO_TRACE
    deadline: float | None = None
    """On the event loop's clock; None: none."""
    drafting: DraftingChoice = field(default_factory=DraftingChoice)

    @property
    def num_tokens(self) -> int:
        """How many token ids its ``Start`` carries."""
        return (
            len(self.prompt_token_ids) + len(self.emitted_token_ids) + len(self.predicted_token_ids)
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one emitted token and of the best ones at its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Step(NamedTuple):
    """What one engine step did for one sequence; made for every message, so it is a tuple."""

    token_ids: tuple[int, ...]
    num_drafted: int = 0
    num_accepted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason = FinishReason.UNSPECIFIED
    matched_stop_token_id: int | None = None
    cached_prompt_tokens: int = 0
    queue_seconds: float = 0.0
    is_prefill: bool = False
    fallback: DraftFallback = DraftFallback.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a verifier can do."""

    trees: bool = True
    verification_rules: frozenset[VerificationRule] = frozenset({VerificationRule.SAMPLE_AND_MATCH})
    max_draft_tokens: int = 0
    max_logprobs: int = 0
    penalties: bool = False
    logit_bias: bool = False
    structured_output: bool = False
    seeded_invariance: bool = True
    """The same seed gives the same ids whatever is drafted or batched."""

    def cover(self, promised: Capabilities) -> bool:
        """Return whether a request that was accepted on what ``promised`` says can run here."""
        return (
            self.verification_rules >= promised.verification_rules
            and self.max_logprobs >= promised.max_logprobs
            and self.penalties >= promised.penalties
            and self.logit_bias >= promised.logit_bias
            and self.structured_output >= promised.structured_output
            and self.seeded_invariance >= promised.seeded_invariance
        )


@dataclass(frozen=True, slots=True)
class DraftPool:
    """A draft pool of a verifier and whether it can be used now."""

    name: str
    available: bool
    cause: DraftFallback = DraftFallback.UNSPECIFIED
    detail: str = ""
    drafter: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a verifier serves."""

    model: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    engine: str
    eos_token_ids: frozenset[int]
    capabilities: Capabilities
    speaks_our_protocol: bool
    draft_pools: tuple[DraftPool, ...]
    default_sampling: Sampling
    version: str

    def pool(self, name: str) -> DraftPool | None:
        """Return the pool of that name; the empty name is the first one listed."""
        for pool in self.draft_pools:
            if name in ("", pool.name):
                return pool
        return None


@dataclass(frozen=True, slots=True)
class VerifierLoad:
    """How busy a verifier is."""

    num_running: int = 0
    num_waiting: int = 0
    max_running: int = 0
    kv_utilization: float = 0.0
    step_seconds: float = 0.0
    estimated_gain: float = 1.0
    """Estimated tokens/s with drafting divided by without; exactly 1 when unknown."""
