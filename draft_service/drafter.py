"""
What the draft service asks of a drafter, stated as guarantees. No drafter lives here.

A drafter holds caches only: it may forget anything at any time, and nothing but speed is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.tree import TokenTree

ANY_TOKENIZER = "any"
"""The fingerprint of a drafter that only copies ids."""

MAX_TOKEN_ID = (1 << 31) - 1
"""Larger ids are malformed: no vocabulary is that large."""


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What is fixed about a drafter."""

    kind: str
    """Its name in the registry."""
    tokenizer_fingerprint: str = ANY_TOKENIZER
    vocab_size: int = 0
    """Proposed ids are below this; 0: no limit of its own."""
    wants_features: bool = False
    """Commits should bring the hidden features of the verified rows."""
    uses_shared_noise: bool = False
    """Ranks candidates with the noise that the target will use."""
    is_blocking: bool = False
    """Takes long enough to propose (over a millisecond) that it must not run in the event loop."""


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a verifier tells about a sequence when it opens a session."""

    committed_token_ids: Sequence[int]
    predicted_token_ids: Sequence[int] = ()
    """The client's guess of the output; may be empty."""
    prompt_len: int = 0
    """How many of the committed tokens are the prompt."""
    seed: int = 0
    temperature: float = 0.0
    tenant: str = ""
    """Text of one tenant never shows in the drafts of another, by content or by timing."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How large the tree of one proposal may be."""

    max_draft_tokens: int
    max_tree_depth: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact: from committed length ``base_len`` on, the paths of ``tree`` are likely."""

    base_len: int
    tree: TokenTree
    may_grow: bool = False
    """Asked again before the next commit, the session may say more: it works ahead."""


class DraftSession(Protocol):
    """
    A drafter's cache of one sequence.

    The caller guarantees that commits come in order and without gaps, and that nothing follows
    ``close``. Of a blocking drafter ``commit`` and ``close`` may be called while its
    ``propose_batch`` runs in another thread; both only take note and return at once.
    """

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Append tokens to the committed ones, of which there are ``base_len``."""
        ...

    def propose(self, limits: DraftLimits) -> Draft:
        """
        Return the likely continuations of the tokens committed so far.

        The tree keeps the limits and may be empty. The same commits give the same tree. A draft
        that ``may_grow`` is followed by another call, unless a commit comes first; after finitely
        many calls one without it must come.
        """
        ...

    def close(self) -> None:
        """Free what the session holds."""
        ...


@dataclass(frozen=True, slots=True)
class DraftJob:
    """One session that waits for a proposal."""

    session: DraftSession
    limits: DraftLimits


class Drafter(Protocol):
    """Something that proposes trees of likely tokens for many sessions."""

    @property
    def info(self) -> DrafterInfo:
        """What is fixed about the drafter."""
        ...

    def warm_up(self) -> None:
        """Do everything that would make the first proposal slower than later ones."""
        ...

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session that knows the tokens of ``spec``; sessions share no text."""
        ...

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job, in order: those of ``job.session.propose``."""
        ...


def propose_each(jobs: Sequence[DraftJob]) -> list[Draft]:
    """Return the drafts of jobs one by one: ``propose_batch`` of a drafter without batching."""
    return [job.session.propose(job.limits) for job in jobs]
