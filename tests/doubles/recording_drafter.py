"""A drafter for tests that proposes the last token again and records what it was told."""

from __future__ import annotations

import time
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

POISON = 666
"""Sessions that hold this token make the drafter fail."""


class RecordingSession:
    """Knows its tokens; checks that it is used as the contract says."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.tokens = list(spec.committed_token_ids)
        self.features = b""
        self.is_closed = False

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Append tokens; fails if they are not the next ones."""
        assert not self.is_closed
        assert base_len == len(self.tokens)
        self.tokens += token_ids
        self.features += features

    def propose(self, limits: DraftLimits) -> Draft:
        """Propose the last token once more; fails if the poison was committed."""
        assert not self.is_closed
        if POISON in self.tokens:
            raise RuntimeError("poisoned")
        return Draft(len(self.tokens), TokenTree.chain(self.tokens[-1:]))

    def close(self) -> None:
        """Take note; fails the second time."""
        assert not self.is_closed
        self.is_closed = True


class RecordingDrafter:
    """Hands out recording sessions; slow and in batches if told so."""

    def __init__(self, *, seconds_per_batch: float = 0.0) -> None:
        self.info = DrafterInfo(kind="recording", is_blocking=seconds_per_batch > 0)
        self.sessions: list[RecordingSession] = []
        self.batch_sizes: list[int] = []
        self._seconds_per_batch = seconds_per_batch

    def warm_up(self) -> None:
        """Do nothing."""

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session that is also kept in ``sessions``."""
        self.sessions.append(RecordingSession(spec))
        return self.sessions[-1]

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Take the set time, then answer the jobs."""
        self.batch_sizes.append(len(jobs))
        time.sleep(self._seconds_per_batch)
        return propose_each(jobs)
