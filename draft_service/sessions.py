"""
The table of sessions: who is known, up to which token, and who is forgotten. It drafts nothing.

Nothing here is precious. A session that the table does not know, or whose commits do not fit what
it knows, is reported as unknown, and the verifier opens it again.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from draft_service.drafter import (
    MAX_TOKEN_ID,
    Drafter,
    DraftJob,
    DraftLimits,
    DraftSession,
    SessionSpec,
)


class RefusalCause(Enum):
    """Why a session is not served; the verifier goes on without drafts."""

    TOO_LONG = "too_long"
    LOAD = "load"
    MALFORMED = "malformed"
    DRAFTER_FAILED = "drafter_failed"


class UnknownSession(Exception):
    """The table does not hold the session, or not in the state that the commit assumes."""


class SessionRefused(Exception):
    """The session will not be served."""

    def __init__(self, cause: RefusalCause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names a session; two streams may use equal session ids."""

    stream_id: int
    session_id: int


@dataclass(frozen=True, slots=True)
class TableLimits:
    """The bounds of the table; ``DraftSettings`` gives units and reasons."""

    max_sessions: int
    max_session_tokens: int
    idle_session_seconds: float
    busy_session_seconds: float
    max_draft_tokens: int
    max_tree_depth: int


@dataclass(slots=True)
class _Session:
    drafter_session: DraftSession
    committed: array[int]
    limits: DraftLimits
    last_used: float


class SessionTable:
    """The open sessions of all streams, the least recently used first."""

    def __init__(
        self, drafter: Drafter, limits: TableLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._drafter = drafter
        self._limits = limits
        self._clock = clock
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    def open(self, key: SessionKey, spec: SessionSpec, limits: DraftLimits) -> None:
        """
        Open a session, or open it anew; zero limits stand for the service's own.

        Predicted output counts towards the session's length and is cut to what fits.

        Raises ``SessionRefused``.
        """
        self.close(key)
        _check_token_ids(spec.committed_token_ids)
        self._check_length(len(spec.committed_token_ids))
        room = self._limits.max_session_tokens - len(spec.committed_token_ids)
        spec = replace(spec, predicted_token_ids=spec.predicted_token_ids[:room])
        _check_token_ids(spec.predicted_token_ids)
        self._make_room()
        self._sessions[key] = _Session(
            drafter_session=self._drafter.open(spec),
            committed=array("I", spec.committed_token_ids),
            limits=self._within_own(limits),
            last_used=self._clock(),
        )

    def commit(
        self, key: SessionKey, base_len: int, token_ids: Sequence[int], features: bytes = b""
    ) -> None:
        """
        Append committed tokens; what is known already is skipped if it agrees.

        Raises ``UnknownSession`` for a gap or a contradiction, and ``SessionRefused``.
        """
        session = self._use(key)
        num_known = len(session.committed)
        num_repeated = num_known - base_len
        repeated = session.committed[base_len : base_len + len(token_ids)]
        if num_repeated < 0 or list(repeated) != list(token_ids[:num_repeated]):
            self.close(key)
            raise UnknownSession
        fresh = token_ids[num_repeated:]
        try:
            _check_token_ids(fresh)
            self._check_length(num_known + len(fresh))
        except SessionRefused:
            self.close(key)
            raise
        if fresh:
            row_size = len(features) // len(token_ids)
            session.committed.extend(fresh)
            session.drafter_session.commit(num_known, fresh, features[row_size * num_repeated :])

    def job(self, key: SessionKey) -> DraftJob:
        """Return the drafting job of a session; raises ``UnknownSession``."""
        session = self._use(key)
        room = self._limits.max_session_tokens - len(session.committed)
        limits = DraftLimits(
            max_draft_tokens=session.limits.max_draft_tokens,
            max_tree_depth=min(session.limits.max_tree_depth, room),
        )
        return DraftJob(session.drafter_session, limits)

    def close(self, key: SessionKey) -> None:
        """Forget a session, if it is known."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.drafter_session.close()

    def close_stream(self, stream_id: int) -> None:
        """Forget all sessions of a stream."""
        for key in [key for key in self._sessions if key.stream_id == stream_id]:
            self.close(key)

    def _use(self, key: SessionKey) -> _Session:
        self._evict_idle()
        session = self._sessions.get(key)
        if session is None:
            raise UnknownSession
        session.last_used = self._clock()
        self._sessions.move_to_end(key)
        return session

    def _make_room(self) -> None:
        self._evict_idle()
        if len(self._sessions) < self._limits.max_sessions:
            return
        oldest = next(iter(self._sessions))
        unused_seconds = self._clock() - self._sessions[oldest].last_used
        if unused_seconds < self._limits.busy_session_seconds:
            raise SessionRefused(
                RefusalCause.LOAD, f"all {self._limits.max_sessions} sessions are in use"
            )
        self._evict(oldest)

    def _evict_idle(self) -> None:
        horizon = self._clock() - self._limits.idle_session_seconds
        while self._sessions:
            key = next(iter(self._sessions))
            if self._sessions[key].last_used > horizon:
                return
            self._evict(key)

    def _evict(self, key: SessionKey) -> None:
        self.close(key)
        self.num_evicted += 1

    def _check_length(self, num_tokens: int) -> None:
        longest = self._limits.max_session_tokens
        if num_tokens > longest:
            raise SessionRefused(
                RefusalCause.TOO_LONG, f"{num_tokens} tokens, this drafter takes {longest}"
            )

    def _within_own(self, limits: DraftLimits) -> DraftLimits:
        own = self._limits
        num_nodes = limits.max_draft_tokens or own.max_draft_tokens
        depth = limits.max_tree_depth or own.max_tree_depth
        return DraftLimits(
            max_draft_tokens=min(num_nodes, own.max_draft_tokens),
            max_tree_depth=min(depth, own.max_tree_depth),
        )


def _check_token_ids(token_ids: Sequence[int]) -> None:
    if token_ids and max(token_ids) > MAX_TOKEN_ID:
        raise SessionRefused(
            RefusalCause.MALFORMED, f"token id {max(token_ids)} is above {MAX_TOKEN_ID}"
        )
