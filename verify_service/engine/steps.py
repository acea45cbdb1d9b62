"""What goes into the engine and what comes out of each step. Values only; no transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import PacelineError
from paceline.tree import TokenTree
from verify_service.engine.drawn_children import DrawnChildren
from verify_service.engine.sampling import Fallback, FinishReason
from verify_service.engine.sequence import Drafting, Request


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a sequence."""

    request: Request
    drafting: Drafting = field(default_factory=Drafting)


@dataclass(frozen=True, slots=True)
class CancelSequence:
    """End a sequence and free its blocks."""

    sequence_id: int


@dataclass(frozen=True, slots=True)
class ChangeDrafting:
    """Use another pool, or none, from the next step on."""

    sequence_id: int
    drafting: Drafting


@dataclass(frozen=True, slots=True)
class TreeFact:
    """A validated tree for a sequence, from ``pool``; an empty pool is the sequence's client."""

    sequence_id: int
    base_len: int
    tree: TokenTree
    pool: str = ""
    drawn: Mapping[int, DrawnChildren] = field(default_factory=dict)
    """By node of the tree: children drawn from a distribution that may be trusted."""


@dataclass(frozen=True, slots=True)
class PoolUp:
    """A pool can be used from now on; sessions there start afresh."""

    pool: str


@dataclass(frozen=True, slots=True)
class PoolDown:
    """A pool cannot be used, for ``cause``."""

    pool: str
    cause: Fallback


@dataclass(frozen=True, slots=True)
class SessionLost:
    """A pool does not know a session any more; it is opened again."""

    pool: str
    sequence_id: int


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """A pool will not draft for a sequence, for ``cause``."""

    pool: str
    sequence_id: int
    cause: Fallback


Command = (
    Submit
    | CancelSequence
    | ChangeDrafting
    | TreeFact
    | PoolUp
    | PoolDown
    | SessionLost
    | SessionRefused
)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one emitted token under the model's unmodified distribution."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """What one step did for one sequence."""

    sequence_id: int
    token_ids: tuple[int, ...]
    num_drafted: int = 0
    num_accepted: int = 0
    """``len(token_ids) - 1``: the last token counts as the target's own."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    matched_stop_token_id: int | None = None
    is_prefill: bool = False
    num_cached_prompt_tokens: int = 0
    queue_seconds: float = 0.0
    fallback: Fallback | None = None


@dataclass(frozen=True, slots=True)
class SequenceFailure:
    """The end of one sequence through an error."""

    sequence_id: int
    error: PacelineError


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Tell ``pool`` about a sequence from its start."""

    pool: str
    request: Request
    committed_token_ids: tuple[int, ...]
    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class SessionCommitted:
    """Tell ``pool`` what was committed to a sequence that it knows."""

    pool: str
    sequence_id: int
    base_len: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """Tell ``pool`` to forget a sequence."""

    pool: str
    sequence_id: int


SessionEvent = SessionOpened | SessionCommitted | SessionClosed


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is."""

    num_running: int = 0
    num_waiting: int = 0
    kv_utilization: float = 0.0
    step_seconds: float = 0.0
    num_rows: int = 0
    estimated_gain: float = 1.0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything that one step tells the outside."""

    steps: tuple[SequenceStep, ...] = ()
    failures: tuple[SequenceFailure, ...] = ()
    session_events: tuple[SessionEvent, ...] = ()
    load: Load = field(default_factory=Load)
