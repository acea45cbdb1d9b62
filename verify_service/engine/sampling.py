"""How one sequence chooses its tokens: parameters and limits. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class Rule(Enum):
    """The verification rule."""

    SAMPLE_AND_MATCH = auto()
    REJECTION = auto()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """
    Parameters of the target's own choice at each row, all resolved.

    Applied in this order: repetition, presence and frequency penalties, bias, minimum length,
    temperature, top-k, top-p (over what top-k left), min-p (relative to the best token).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    rule: Rule = Rule.SAMPLE_AND_MATCH

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken without noise."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on the tokens before it beyond the model's own view."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """When generation ends, in tokens."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    """Stop tokens of the request and, unless ignored, the model's end-of-sequence tokens."""


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = auto()
    LENGTH = auto()
    CANCELLED = auto()
    DEADLINE = auto()
    ERROR = auto()


class Fallback(Enum):
    """Why a sequence runs without drafts; the names are those of ``DraftFallback``."""

    REQUESTED = auto()
    LOAD = auto()
    UNREACHABLE = auto()
    NO_GAIN = auto()
    MISMATCH = auto()
    NO_POOL = auto()
    DEMOTED = auto()
    PRIORITY = auto()
    UNSUPPORTED = auto()
    TOO_LONG = auto()
