"""Which sessions the table knows, and what it passes on to the drafter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draft_service.drafter import DraftLimits, SessionSpec
from draft_service.sessions import (
    RefusalCause,
    SessionKey,
    SessionRefused,
    SessionTable,
    TableLimits,
    UnknownSession,
)
from tests.doubles.recording_drafter import RecordingDrafter

LIMITS = TableLimits(
    max_sessions=3,
    max_session_tokens=100,
    idle_session_seconds=60.0,
    busy_session_seconds=1.0,
    max_draft_tokens=16,
    max_tree_depth=8,
)
OWN_LIMITS = DraftLimits(max_draft_tokens=0, max_tree_depth=0)


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


class Fixture:
    """A table over a recording drafter."""

    def __init__(self, limits: TableLimits = LIMITS) -> None:
        self.clock = ManualClock()
        self.drafter = RecordingDrafter()
        self.table = SessionTable(self.drafter, limits, self.clock)

    def open(self, session_id: int, *token_ids: int) -> SessionKey:
        """Open a session of stream 1 with the service's own limits."""
        key = SessionKey(1, session_id)
        self.table.open(key, SessionSpec(token_ids or (1, 2, 3)), OWN_LIMITS)
        return key


def test_a_commit_reaches_the_drafter() -> None:
    made = Fixture()
    key = made.open(7)

    made.table.commit(key, 3, (4, 5))

    assert made.drafter.sessions[0].tokens == [1, 2, 3, 4, 5]


def test_an_overlap_that_agrees_is_skipped_with_its_features() -> None:
    made = Fixture()
    key = made.open(7)

    made.table.commit(key, 2, (3, 4, 5), b"aabbcc")

    assert made.drafter.sessions[0].tokens == [1, 2, 3, 4, 5]
    assert made.drafter.sessions[0].features == b"bbcc"


@pytest.mark.parametrize(("base_len", "token_ids"), [(0, (1, 2, 3)), (1, (2,)), (3, ()), (0, ())])
def test_a_commit_of_what_is_known_changes_nothing(
    base_len: int, token_ids: tuple[int, ...]
) -> None:
    made = Fixture()
    key = made.open(7)

    made.table.commit(key, base_len, token_ids)

    assert made.drafter.sessions[0].tokens == [1, 2, 3]


@pytest.mark.parametrize(
    ("base_len", "token_ids"), [(4, (5,)), (2**32 - 1, ()), (2, (9,)), (0, (1, 9, 3, 4))]
)
def test_a_gap_or_a_contradiction_forgets_the_session(
    base_len: int, token_ids: tuple[int, ...]
) -> None:
    made = Fixture()
    key = made.open(7)

    with pytest.raises(UnknownSession):
        made.table.commit(key, base_len, token_ids)

    assert key not in made.table
    assert made.drafter.sessions[0].is_closed


def test_the_least_recently_used_session_makes_room() -> None:
    """B055: a full table serves new prompts."""
    made = Fixture()
    keys = [made.open(session_id) for session_id in range(3)]
    made.clock.now += 2
    made.table.commit(keys[0], 3, (4,))

    made.open(3)

    assert keys[0] in made.table
    assert keys[1] not in made.table
    assert len(made.table) == 3


def test_sessions_in_use_are_not_evicted_in_turn() -> None:
    """More sessions than fit: some are served well, none is evicted before its next step."""
    made = Fixture()
    keys = [made.open(session_id) for session_id in range(3)]

    with pytest.raises(SessionRefused) as refused:
        made.open(3)

    assert refused.value.cause is RefusalCause.LOAD
    assert all(key in made.table for key in keys)


def test_idle_sessions_are_forgotten() -> None:
    made = Fixture()
    idle = made.open(1)
    made.clock.now += 59
    used = made.open(2)
    made.clock.now += 2

    made.table.commit(used, 3, (4,))

    assert idle not in made.table
    assert made.table.num_evicted == 1


def test_a_prompt_that_is_too_long_is_refused() -> None:
    """B095: the length limit has a consumer."""
    made = Fixture()

    with pytest.raises(SessionRefused) as refused:
        made.open(1, *range(101))

    assert refused.value.cause is RefusalCause.TOO_LONG
    assert not made.drafter.sessions


def test_a_session_that_grows_too_long_is_refused_and_freed() -> None:
    """B111: drafting stops at the limit, and only there."""
    made = Fixture()
    key = made.open(1, *range(99))
    made.table.commit(key, 99, (1,))

    with pytest.raises(SessionRefused) as refused:
        made.table.commit(key, 100, (1,))

    assert refused.value.cause is RefusalCause.TOO_LONG
    assert key not in made.table


def test_predicted_output_is_cut_to_the_room_that_is_left() -> None:
    made = Fixture()
    spec = SessionSpec(tuple(range(90)), predicted_token_ids=tuple(range(50)))

    made.table.open(SessionKey(1, 1), spec, OWN_LIMITS)

    assert made.drafter.sessions[0].spec.predicted_token_ids == tuple(range(10))


def test_limits_of_a_job_are_the_smaller_of_both_sides() -> None:
    made = Fixture()
    key = SessionKey(1, 1)
    made.table.open(key, SessionSpec((1,)), DraftLimits(max_draft_tokens=99, max_tree_depth=2))

    assert made.table.job(key).limits == DraftLimits(max_draft_tokens=16, max_tree_depth=2)


def test_no_job_reaches_beyond_the_longest_session() -> None:
    """B039, B040: what is proposed near the end is capped."""
    made = Fixture()
    key = made.open(1, *range(97))

    assert made.table.job(key).limits.max_tree_depth == 3


def test_a_stream_that_ends_takes_only_its_own_sessions() -> None:
    made = Fixture()
    first = made.open(1)
    other = SessionKey(2, 1)
    made.table.open(other, SessionSpec((1,)), OWN_LIMITS)

    made.table.close_stream(1)

    assert first not in made.table
    assert other in made.table


def test_a_full_table_can_reopen_what_it_holds() -> None:
    made = Fixture()
    for session_id in range(3):
        made.open(session_id)

    key = made.open(2, 9, 9)

    made.table.commit(key, 2, (9,))
    assert made.drafter.sessions[-1].tokens == [9, 9, 9]


def test_without_protection_the_oldest_session_goes_at_once() -> None:
    made = Fixture(replace(LIMITS, busy_session_seconds=0.0))
    oldest = made.open(0)

    for session_id in range(1, 4):
        made.open(session_id)

    assert oldest not in made.table
