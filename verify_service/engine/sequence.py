"""The engine's state of one request. Values and counts only; no tensors, no policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from verify_service.engine.calibration import SequenceCalibration
from verify_service.engine.constraint import Constraint
from verify_service.engine.draft_trie import DraftTrie
from verify_service.engine.sampling import Fallback, SamplingParams, TokenLimits


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Drafting:
    """Which pool drafts for a sequence; an empty pool is none, for the stated cause."""

    pool: str = ""
    max_draft_tokens: int = 0
    """Most nodes per step; 0: the engine's own limit."""
    fallback: Fallback | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a sequence is asked to do; fixed for its life."""

    sequence_id: int
    prompt_token_ids: tuple[int, ...]
    emitted_token_ids: tuple[int, ...] = ()
    """Emitted before a resume; they count towards limits and penalties."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: TokenLimits = field(default_factory=lambda: TokenLimits(max_tokens=16))
    priority: int = 0
    """Larger runs first."""
    deadline: float | None = None
    """On the engine's monotonic clock, in seconds."""
    tenant: str = ""
    cache_salt: str = ""
    predicted_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None
    constraint: Constraint | None = None
    """What the output has to look like; its state belongs to the engine from here on."""
    lockstep: bool = False
    """Bring your own drafter: a step is run only for a proposal, and with all of it that fits."""


class Sequence:
    """One running or waiting request."""

    def __init__(
        self, request: Request, drafting: Drafting, arrival: float, max_trie_nodes: int
    ) -> None:
        self.request = request
        self.drafting = drafting
        self.arrival = arrival
        self.phase = Phase.WAITING
        self.token_ids: list[int] = [*request.prompt_token_ids, *request.emitted_token_ids]
        self.num_stored = 0
        """Committed tokens whose KV is stored; while decoding, all but the last."""
        self.block_table: list[int] = []
        self.num_published_blocks = 0
        self.num_cached_prompt_tokens = 0
        self.first_scheduled: float | None = None
        self.trie = DraftTrie(max_trie_nodes)
        self.calibration: SequenceCalibration | None = None
        self.session_pool = ""
        """The pool at which a draft session is open; empty: none."""
        self.has_emitted = False
        self.num_preemptions = 0
        self.pending_verdicts = 0
        """Proposals of a lockstep sequence that still wait for their step."""
        self.awaits_tree = False
        self.arrival_rate = 0.5
        """Share of commits that were answered with a tree before the next step."""
        self.accepted_ema = 0.5
        self.num_granted = max_trie_nodes
        """Nodes that the budget last gave it; no fewer than before if it got all it offered."""

    @property
    def sequence_id(self) -> int:
        """The engine-wide id."""
        return self.request.sequence_id

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_emitted(self) -> int:
        """Tokens emitted so far, those before a resume included."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_pending_rows(self) -> int:
        """Committed tokens that have no KV yet; 1 while decoding."""
        return len(self.token_ids) - self.num_stored

    @property
    def is_decoding(self) -> bool:
        """Whether only the last committed token lacks its KV."""
        return self.num_pending_rows == 1

    @property
    def salt(self) -> str:
        """What separates this sequence's cached prefixes from other tenants'."""
        return f"{self.request.tenant}\0{self.request.cache_salt}"

    def max_new_tokens(self, context_length: int) -> int:
        """Return how many tokens may still be emitted."""
        by_limit = self.request.limits.max_tokens - self.num_emitted
        return min(by_limit, context_length - len(self.token_ids))

    def rank(self) -> tuple[int, float, int]:
        """Return the order in which sequences are served; smaller first."""
        return (-self.request.priority, self.arrival, self.sequence_id)
