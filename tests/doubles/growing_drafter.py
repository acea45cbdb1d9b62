"""A drafter for tests that works ahead: each call proposes one token more of a fixed chain."""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.drafter import (
    Draft,
    DrafterInfo,
    DraftJob,
    DraftLimits,
    DraftSession,
    SessionSpec,
    propose_each,
)
from paceline.tree import TokenTree


class GrowingSession:
    """Counts on from its last token; silent for the first calls if told so."""

    def __init__(self, spec: SessionSpec, num_silent: int) -> None:
        self.tokens = list(spec.committed_token_ids)
        self._num_silent = num_silent
        self._depth = 0

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Append tokens and start a new chain."""
        self.tokens += token_ids
        self._depth = 0

    def propose(self, limits: DraftLimits) -> Draft:
        """Propose one token more than at the last call."""
        if self._num_silent:
            self._num_silent -= 1
            return Draft(len(self.tokens), TokenTree(), may_grow=True)
        self._depth = min(self._depth + 1, limits.max_tree_depth)
        chain = [self.tokens[-1] + ahead for ahead in range(1, self._depth + 1)]
        return Draft(
            len(self.tokens), TokenTree.chain(chain), may_grow=self._depth < limits.max_tree_depth
        )

    def close(self) -> None:
        """Do nothing."""


class GrowingDrafter:
    """Hands out growing sessions and counts the calls."""

    def __init__(self, *, is_blocking: bool = False, num_silent: int = 0) -> None:
        self.info = DrafterInfo(kind="growing", is_blocking=is_blocking)
        self.num_calls = 0
        self._num_silent = num_silent

    def warm_up(self) -> None:
        """Do nothing."""

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session."""
        return GrowingSession(spec, self._num_silent)

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Answer the jobs."""
        self.num_calls += 1
        return propose_each(jobs)
