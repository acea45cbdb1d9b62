"""What became of drafters' trees, counted; no policy reads it."""

from __future__ import annotations

from enum import Enum, auto

from verify_service.engine.draft_trie import MergeOutcome


class Fate(Enum):
    """What became of a valid tree."""

    MERGED = auto()
    STALE = auto()
    """Nothing of it continued what was committed, or its sequence drafts from elsewhere by now."""
    AHEAD = auto()
    """It claimed a committed length that was never reached."""
    ENDED = auto()
    """Its sequence had ended."""
    INBOX_FULL = auto()
    """The engine had too many commands to read."""


_OF_OUTCOME = {
    MergeOutcome.MERGED: Fate.MERGED,
    MergeOutcome.STALE: Fate.STALE,
    MergeOutcome.AHEAD: Fate.AHEAD,
}


class DraftTally:
    """
    Counts that only grow; they may be read on any thread.

    Of each fate only one thread tells, so that no count is lost.
    """

    def __init__(self) -> None:
        self._trees: dict[tuple[str, Fate], int] = {}
        self.num_nodes_without_blocks = 0
        """Nodes that were worth a row but found no free KV block."""

    def merged(self, pool: str, outcome: MergeOutcome) -> None:
        """Count a tree that was offered to its sequence."""
        self.met(pool, _OF_OUTCOME[outcome])

    def met(self, pool: str, fate: Fate) -> None:
        """Count a tree."""
        self._trees[pool, fate] = self._trees.get((pool, fate), 0) + 1

    def trees(self) -> dict[tuple[str, Fate], int]:
        """Return the number of trees by pool and fate; the pool of clients' own trees is empty."""
        return dict(self._trees)
