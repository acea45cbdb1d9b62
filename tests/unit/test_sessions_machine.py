"""The session table against a plain model of it, under any order of calls."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from draft_service.drafter import DraftLimits, SessionSpec
from draft_service.sessions import (
    SessionKey,
    SessionRefused,
    SessionTable,
    TableLimits,
    UnknownSession,
)
from tests.doubles.recording_drafter import RecordingDrafter

KEYS = st.builds(SessionKey, st.integers(1, 2), st.integers(0, 4))
TOKENS = st.lists(st.integers(0, 3), max_size=5).map(tuple)
LIMITS = TableLimits(
    max_sessions=4,
    max_session_tokens=12,
    idle_session_seconds=50.0,
    busy_session_seconds=3.0,
    max_draft_tokens=8,
    max_tree_depth=8,
)


class SessionTableMachine(RuleBasedStateMachine):
    """What the table holds is a subset of what was opened, and always with the right tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.drafter = RecordingDrafter()
        self.table = SessionTable(self.drafter, LIMITS, lambda: self.now)
        self.expected: dict[SessionKey, tuple[int, ...]] = {}

    @rule(key=KEYS, token_ids=TOKENS)
    def open(self, key: SessionKey, token_ids: tuple[int, ...]) -> None:
        """Open a session, new or known."""
        self.expected.pop(key, None)
        try:
            self.table.open(key, SessionSpec(token_ids), DraftLimits(0, 0))
        except SessionRefused:
            assert len(self.table) == LIMITS.max_sessions
        else:
            self.expected[key] = token_ids

    @rule(key=KEYS, back=st.integers(0, 4), token_ids=TOKENS)
    def commit(self, key: SessionKey, back: int, token_ids: tuple[int, ...]) -> None:
        """Commit tokens, some of which may be known already."""
        known = self.expected.get(key, ())
        base_len = max(len(known) - back, 0)
        grown = known[:base_len] + token_ids
        if len(grown) < len(known):
            grown += known[len(grown) :]
        try:
            self.table.commit(key, base_len, token_ids)
        except (UnknownSession, SessionRefused):
            assert key not in self.table
            self.expected.pop(key, None)
        else:
            assert grown[: len(known)] == known
            self.expected[key] = grown

    @rule(key=KEYS)
    def close(self, key: SessionKey) -> None:
        """Close a session, known or not."""
        self.table.close(key)
        self.expected.pop(key, None)

    @rule(stream_id=st.integers(1, 2))
    def end_stream(self, stream_id: int) -> None:
        """End a stream with all its sessions."""
        self.table.close_stream(stream_id)
        self.expected = {k: v for k, v in self.expected.items() if k.stream_id != stream_id}

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @rule(key=KEYS)
    def propose(self, key: SessionKey) -> None:
        """A proposal is about exactly the committed tokens."""
        try:
            job = self.table.job(key)
        except UnknownSession:
            assert key not in self.table
        else:
            assert job.session.propose(job.limits).base_len == len(self.expected[key])

    @invariant()
    def every_open_drafter_session_belongs_to_the_table(self) -> None:
        """Nothing leaks, nothing is double."""
        still_open = [s.tokens for s in self.drafter.sessions if not s.is_closed]
        held = [list(v) for k, v in self.expected.items() if k in self.table]

        assert len(self.table) <= LIMITS.max_sessions
        assert sorted(still_open) == sorted(held)


TestSessionTableMachine = SessionTableMachine.TestCase
TestSessionTableMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
