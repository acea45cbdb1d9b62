"""
The engine's view of draft pools: which can be used, how far they can be trusted, which sequence has
a session where. It opens no connection; it says what links have to send.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verify_service.engine.calibration import PoolCalibration, SequenceCalibration
from verify_service.engine.sampling import Fallback
from verify_service.engine.sequence import Phase, Sequence
from verify_service.engine.steps import (
    SessionClosed,
    SessionCommitted,
    SessionEvent,
    SessionOpened,
)


@dataclass(slots=True)
class Pool:
    """One draft pool as the engine sees it."""

    name: str
    cause: Fallback | None = Fallback.UNREACHABLE
    """Why it cannot be used; None: it can."""
    calibration: PoolCalibration = field(default_factory=PoolCalibration)


class DraftPools:
    """All draft pools of one verifier and the sessions of its sequences."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.pools = {name: Pool(name) for name in names}
        self._refused: dict[int, dict[str, Fallback]] = {}
        self._events: list[SessionEvent] = []

    def cause_for(self, sequence: Sequence) -> Fallback | None:
        """Return why a sequence runs without drafts; None: it drafts."""
        name = sequence.drafting.pool
        if not name:
            return sequence.drafting.fallback or Fallback.REQUESTED
        pool = self.pools.get(name)
        if pool is None:
            return Fallback.NO_POOL
        return pool.cause or self._refused.get(sequence.sequence_id, {}).get(name)

    def sync(self, sequence: Sequence) -> None:
        """Open or close the sequence's session so that it matches its policy."""
        usable = sequence.phase is Phase.RUNNING and self.cause_for(sequence) is None
        wanted = sequence.drafting.pool if usable and not sequence.request.lockstep else ""
        if sequence.session_pool == wanted:
            return
        self._close(sequence)
        if wanted:
            sequence.session_pool = wanted
            sequence.calibration = SequenceCalibration(self.pools[wanted].calibration)
            self._open(sequence)

    def committed(self, sequence: Sequence, base_len: int, token_ids: tuple[int, ...]) -> None:
        """Tell the sequence's pool what was committed."""
        if sequence.session_pool:
            self._events.append(
                SessionCommitted(sequence.session_pool, sequence.sequence_id, base_len, token_ids)
            )

    def finished(self, sequence: Sequence) -> None:
        """Close the session of a sequence that ended."""
        self._close(sequence)
        self._refused.pop(sequence.sequence_id, None)

    def reopen(self, sequence: Sequence, pool: str) -> None:
        """Open a session again that its pool lost."""
        if sequence.session_pool == pool:
            self._open(sequence)

    def refuse(self, sequence: Sequence, cause: Fallback) -> None:
        """Run a sequence without drafts, since its pool will not serve it."""
        self._refused.setdefault(sequence.sequence_id, {})[sequence.session_pool] = cause
        sequence.session_pool = ""
        sequence.trie.clear()

    def set_cause(self, name: str, cause: Fallback | None) -> None:
        """Mark a pool, new ones too, as usable (None) or not; its sessions are gone either way."""
        self.pools.setdefault(name, Pool(name)).cause = cause

    @property
    def has_opened(self) -> bool:
        """Whether links have to open sessions: until they do, a drafter cannot begin."""
        return any(isinstance(event, SessionOpened) for event in self._events)

    def take_events(self) -> tuple[SessionEvent, ...]:
        """Return, and forget, what links have to send."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def _open(self, sequence: Sequence) -> None:
        self._events.append(
            SessionOpened(
                sequence.session_pool,
                sequence.request,
                tuple(sequence.token_ids),
                sequence.drafting.max_draft_tokens,
            )
        )

    def _close(self, sequence: Sequence) -> None:
        if sequence.session_pool:
            self._events.append(SessionClosed(sequence.session_pool, sequence.sequence_id))
        sequence.session_pool = ""
