"""Several drafters as one: who answers, who is believed, who rests."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from draft_service.composite import CompositeDrafter, CompositeOptions
from draft_service.drafter import Drafter, DraftJob, DraftLimits, SessionSpec
from draft_service.ngram import NgramDrafter, NgramOptions
from draft_service.registry import create_drafter
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from tests.doubles.growing_drafter import GrowingDrafter
from tests.doubles.recording_drafter import RecordingDrafter

LIMITS = DraftLimits(max_draft_tokens=16, max_tree_depth=4)
COUNTING = SessionSpec(tuple(range(50)))
"""Counts up: the growing drafter is right, the matcher has nothing to say."""

COPYING = SessionSpec((*range(100, 140), *range(100, 120)))


def composite(*members: Drafter, min_gain: float = 0.1) -> CompositeDrafter:
    """Return a composite of members."""
    return CompositeDrafter(members, CompositeOptions(min_gain=min_gain))


def ngram() -> NgramDrafter:
    """Return the matcher."""
    return NgramDrafter(NgramOptions())


def model() -> GrowingDrafter:
    """Return a costly drafter."""
    return GrowingDrafter(is_blocking=True)


def test_news_are_answered_by_the_matcher_before_the_model_is_asked() -> None:
    costly = model()
    session = composite(ngram(), costly).open(COUNTING)

    first = session.propose(LIMITS)
    second = session.propose(LIMITS)

    assert first.may_grow
    assert costly.num_calls == 1
    assert second.tree.token_ids == (50,)


def test_the_model_is_not_put_off_for_ever_by_other_sessions_news() -> None:
    """B101: one session's commits hold up nobody else's drafts."""
    costly = model()
    drafter = composite(ngram(), costly)
    busy, quiet = drafter.open(COUNTING), drafter.open(COUNTING)
    for step in range(6):
        busy.commit(50 + step, (50 + step,))
        drafter.propose_batch([DraftJob(busy, LIMITS), DraftJob(quiet, LIMITS)])

    assert costly.num_calls == 3


def test_a_composite_grows_until_its_model_has_said_all() -> None:
    session = composite(ngram(), model()).open(COUNTING)

    drafts = [session.propose(LIMITS)]
    while drafts[-1].may_grow:
        drafts.append(session.propose(LIMITS))

    assert drafts[-1].tree.token_ids == (50, 51, 52, 53)
    assert len(drafts) == 5


def test_what_the_model_said_below_a_commit_is_kept() -> None:
    session = composite(ngram(), model()).open(COUNTING)
    while session.propose(LIMITS).may_grow:
        pass

    session.commit(50, (50, 51))

    assert session.propose(LIMITS).tree.token_ids[:2] == (52, 53)


def test_the_model_rests_while_a_passage_is_copied() -> None:
    costly = model()
    limits = DraftLimits(max_draft_tokens=16, max_tree_depth=16)
    session = composite(ngram(), costly).open(COPYING)

    draft = session.propose(limits)

    assert not draft.may_grow
    assert draft.tree.token_ids[:3] == (120, 121, 122)
    assert costly.num_calls == 0


def test_the_model_rests_at_a_difference_within_a_copy() -> None:
    costly = model()
    limits = DraftLimits(max_draft_tokens=16, max_tree_depth=16)
    session = composite(ngram(), costly).open(SessionSpec((*range(100, 200), *range(100, 120))))
    for step in range(5):
        session.propose(limits)
        session.commit(120 + 10 * step, tuple(range(120 + 10 * step, 130 + 10 * step)))
    session.propose(limits)

    session.commit(170, (7,))
    draft = session.propose(limits)

    assert not draft.may_grow
    assert costly.num_calls == 0


def test_a_model_that_adds_nothing_is_paused_and_tried_again_later() -> None:
    costly = model()
    session = composite(ngram(), costly, min_gain=0.2).open(COUNTING)
    calls = []
    for step in range(200):
        session.propose(LIMITS)
        session.propose(LIMITS)
        session.commit(50 + step, (1000 + 7 * step,))
        calls.append(costly.num_calls)

    assert calls[11] == calls[70]
    assert calls[-1] > calls[70]


def test_a_model_that_pays_is_never_paused() -> None:
    costly = model()
    session = composite(ngram(), costly, min_gain=0.2).open(COUNTING)
    for step in range(100):
        session.propose(LIMITS)
        session.propose(LIMITS)
        session.commit(50 + step, (50 + step,))

    assert costly.num_calls == 100


def test_members_learn_of_every_commit_and_of_the_end() -> None:
    member = RecordingDrafter()
    drafter = composite(member)
    session = drafter.open(COUNTING)
    session.propose(LIMITS)

    session.commit(50, (1, 2))
    session.commit(52, (3,))
    session.close()
    drafter.propose_batch([])

    assert member.sessions[0].tokens[-3:] == [1, 2, 3]
    assert member.sessions[0].is_closed


def test_a_session_that_never_proposed_opens_no_member() -> None:
    member = RecordingDrafter()
    drafter = composite(member)

    drafter.open(COUNTING).close()
    drafter.propose_batch([])

    assert member.sessions == []


def test_a_session_that_never_proposed_leaves_nothing_behind() -> None:
    drafter = composite(RecordingDrafter())
    session = drafter.open(COUNTING)
    session.close()
    gone = weakref.ref(session)

    del session
    gc.collect()

    assert gone() is None


def test_a_session_closed_while_its_job_waits_costs_the_others_nothing() -> None:
    drafter = composite(ngram(), model())
    closed, other = drafter.open(COUNTING), drafter.open(COPYING)
    drafter.propose_batch([DraftJob(closed, LIMITS), DraftJob(other, LIMITS)])

    closed.close()
    drafts = drafter.propose_batch([DraftJob(closed, LIMITS), DraftJob(other, LIMITS)])

    assert drafts[0].tree.num_nodes == 0
    assert not drafts[0].may_grow
    assert drafts[1].tree.num_nodes > 0


def test_a_matcher_that_still_reads_its_prompt_is_asked_on() -> None:
    slow = GrowingDrafter(num_silent=2)
    session = composite(slow).open(COUNTING)

    drafts = [session.propose(LIMITS) for _ in range(3)]

    assert [draft.may_grow for draft in drafts] == [True, True, True]
    assert drafts[-1].tree.token_ids == (50,)


def test_estimates_are_probabilities() -> None:
    session = composite(ngram(), model()).open(COPYING)
    draft = session.propose(LIMITS)

    assert all(0 < math.exp(log_prob) <= 1 for log_prob in draft.tree.log_probs)


def test_the_registry_makes_a_composite_of_the_named_members() -> None:
    drafter = create_drafter(
        DraftSettings(listen="127.0.0.1:0", drafter="composite", composite_members=("ngram",))
    )

    assert drafter.info.kind == "composite"
    assert not drafter.info.is_blocking


@pytest.mark.parametrize(
    ("members", "complaint"),
    [(("ngram", "ngram"), "twice"), (("composite",), "own member"), ((), "at least 1")],
)
def test_members_that_make_no_sense_are_refused(members: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DraftSettings(listen="127.0.0.1:0", composite_members=members)


def test_an_unknown_member_is_named() -> None:
    settings = DraftSettings(
        listen="127.0.0.1:0", drafter="composite", composite_members=("ngram", "oracle")
    )

    with pytest.raises(ConfigurationError, match=r"setting composite_members: .*'oracle'"):
        create_drafter(settings)


def test_members_can_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFT_COMPOSITE_MEMBERS", "ngram, suffix")

    assert DraftSettings(listen="127.0.0.1:0").composite_members == ("ngram", "suffix")
