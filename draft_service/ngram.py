"""
Prompt lookup: drafts what followed earlier occurrences of the latest tokens, as one tree.

It copies from the sequence's own prompt and output and from the client's predicted output, and
proposes no token that is in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.confidence import Confidence
from draft_service.copy_cursor import CopyCursor
from draft_service.drafter import (
    Draft,
    DrafterInfo,
    DraftJob,
    DraftLimits,
    DraftSession,
    SessionSpec,
    propose_each,
)
from draft_service.ngram_index import SEPARATOR, NgramIndex
from draft_service.ngram_tree import Growth, TreeGrower

_OCCURRENCES_PER_ORDER = 8
"""More than these say little new, and each costs about half a microsecond."""
_WARM_UP_SESSIONS = 32


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """What can be chosen about prompt lookup; ``DraftSettings`` gives the reasons."""

    min_length: int = 1
    max_length: int = 16
    min_probability: float = 0.02


class NgramSession:
    """The index of one sequence, and what its target's commits have taught."""

    __slots__ = ("_confidence", "_cursor", "_growth", "_index", "_max_cost", "_num_predicted")

    def __init__(self, spec: SessionSpec, options: NgramOptions) -> None:
        predicted = (*spec.predicted_token_ids, SEPARATOR) if spec.predicted_token_ids else ()
        self._max_cost = -math.log(options.min_probability)
        self._num_predicted = len(predicted)
        self._confidence = Confidence()
        self._growth: Growth | None = None
        self._index = NgramIndex(
            min_length=options.min_length,
            max_length=options.max_length,
            expected_len=len(predicted) + len(spec.committed_token_ids),
        )
        self._index.extend(predicted)
        self._index.extend(spec.committed_token_ids)
        self._cursor = CopyCursor(self._index.tokens, 0 if predicted else None)

    @property
    def base_len(self) -> int:
        """The number of committed tokens."""
        return len(self._index) - self._num_predicted

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Append committed tokens and learn how good the last tree was."""
        if self._growth is not None:
            self._growth.observe(token_ids, self._confidence)
            self._growth = None
        self._cursor.advance(token_ids)
        self._index.extend(token_ids)

    def propose(self, limits: DraftLimits) -> Draft:
        """Return the likely continuations; the cost does not grow with the sequence."""
        matches = self._cursor.join(self._index.matches(_OCCURRENCES_PER_ORDER))
        grower = TreeGrower(self._index.tokens, self._confidence, self._max_cost, limits)
        self._growth = grower.grow(matches)
        return Draft(self.base_len, self._growth.tree)

    def close(self) -> None:
        """Forget the last tree; the index goes with the session."""
        self._growth = None


class NgramDrafter:
    """Drafts by prompt lookup."""

    info = DrafterInfo(kind="ngram")

    def __init__(self, options: NgramOptions) -> None:
        self._options = options

    def warm_up(self) -> None:
        """Run small sessions; the interpreter adapts to its use what it has run often."""
        for _ in range(_WARM_UP_SESSIONS):
            session = self.open(SessionSpec(committed_token_ids=[1, 2, 3] * 50))
            session.propose(DraftLimits(max_draft_tokens=8, max_tree_depth=8))
            session.close()

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session that has indexed the tokens of ``spec``."""
        return NgramSession(spec, self._options)

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job."""
        return propose_each(jobs)
