"""What one stream owes its verifier, and how slow drafters share a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from draft_service.drafter import DraftJob, DraftLimits, SessionSpec
from draft_service.link import Answer, DraftLink
from draft_service.proposing import MAX_BATCH, BatchingProposer, proposer_for
from draft_service.sessions import RefusalCause, SessionTable, TableLimits
from tests.doubles.recording_drafter import POISON, RecordingDrafter

pytestmark = pytest.mark.asyncio

LIMITS = DraftLimits(max_draft_tokens=8, max_tree_depth=8)
SPEC = SessionSpec((1, 2, 3))


def table_over(drafter: RecordingDrafter) -> SessionTable:
    """Return a roomy table."""
    return SessionTable(drafter, TableLimits(100, 1000, 60.0, 0.0, 8, 8))


def link_over(drafter: RecordingDrafter) -> DraftLink:
    """Return a link of its own table."""
    return DraftLink(1, table_over(drafter), proposer_for(drafter))


async def next_answer(answers: AsyncIterator[Answer]) -> Answer:
    """Return the next answer; fails when none comes."""
    return await asyncio.wait_for(anext(answers), 5)


async def test_changes_before_an_answer_are_answered_once_with_the_newest() -> None:
    drafter = RecordingDrafter()
    link = link_over(drafter)
    link.open(1, SPEC, LIMITS)
    link.open(2, SPEC, LIMITS)
    for step in range(100):
        link.commit(1, 3 + step, (step,))

    answer = await next_answer(link.answers())

    assert {key: draft.base_len for key, draft in answer.drafts.items()} == {1: 103, 2: 3}
    assert drafter.batch_sizes == [2]


async def test_nothing_is_said_when_nothing_is_owed() -> None:
    link = link_over(RecordingDrafter())
    link.open(1, SPEC, LIMITS)
    link.close(1)
    link.end()

    assert [answer async for answer in link.answers()] == []


async def test_what_is_owed_is_said_before_the_stream_ends() -> None:
    link = link_over(RecordingDrafter())
    link.open(1, SPEC, LIMITS)
    link.end()

    assert [list(answer.drafts) async for answer in link.answers()] == [[1]]


async def test_a_session_opened_after_it_was_unknown_is_not_reported() -> None:
    link = link_over(RecordingDrafter())
    link.commit(1, 5, (6,))
    link.open(1, SPEC, LIMITS)

    answer = await next_answer(link.answers())

    assert not answer.unknown_session_ids
    assert list(answer.drafts) == [1]


async def test_draining_is_said_once_and_repeated_in_later_answers() -> None:
    link = link_over(RecordingDrafter())
    answers = link.answers()
    link.drain()

    assert (await next_answer(answers)).is_draining
    link.open(1, SPEC, LIMITS)
    assert (await next_answer(answers)).is_draining


async def test_a_flood_of_unknown_sessions_is_bounded() -> None:
    """B074: a hostile peer cannot make the service hold more and more."""
    link = link_over(RecordingDrafter())
    for session_id in range(20_000):
        link.commit(session_id, 0, (1,))

    answer = await next_answer(link.answers())

    assert len(answer.unknown_session_ids) == 8192
    assert link.problems["unknown_session"] == 20_000


async def test_a_drafter_that_fails_costs_its_sessions_and_not_the_stream() -> None:
    link = link_over(RecordingDrafter())
    answers = link.answers()
    link.open(1, SessionSpec((POISON,)), LIMITS)
    link.open(2, SPEC, LIMITS)

    refused = await next_answer(answers)
    while not refused.refusals:
        refused = await next_answer(answers)
    link.open(2, SPEC, LIMITS)
    served = await next_answer(answers)

    assert refused.refusals[1].cause is RefusalCause.DRAFTER_FAILED
    assert list(served.drafts) == [2]


async def test_slow_drafters_batch_what_arrives_meanwhile_from_all_streams() -> None:
    drafter = RecordingDrafter(seconds_per_batch=0.05)
    proposer = BatchingProposer(drafter)
    jobs = [DraftJob(drafter.open(SPEC), LIMITS) for _ in range(4)]

    first = asyncio.create_task(proposer.propose(jobs[:1]))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(proposer.propose([job])) for job in jobs[1:]]
    drafts = [await first, *[await other for other in others]]

    assert drafter.batch_sizes == [1, 3]
    assert [draft.base_len for (draft,) in drafts] == [3] * 4
    await proposer.aclose()


async def test_slow_drafters_leave_the_event_loop_free() -> None:
    drafter = RecordingDrafter(seconds_per_batch=0.2)
    proposer = proposer_for(drafter)
    running = asyncio.create_task(proposer.propose([DraftJob(drafter.open(SPEC), LIMITS)]))

    await asyncio.wait_for(asyncio.sleep(0.01), 0.15)

    assert not running.done()
    await running
    await proposer.aclose()


async def test_a_failing_batch_fails_for_everyone_who_waits_and_the_next_runs() -> None:
    drafter = RecordingDrafter(seconds_per_batch=0.01)
    proposer = BatchingProposer(drafter)
    poisoned = DraftJob(drafter.open(SessionSpec((POISON,))), LIMITS)

    with pytest.raises(RuntimeError, match="poisoned"):
        await proposer.propose([poisoned])

    drafts = await proposer.propose([DraftJob(drafter.open(SPEC), LIMITS)])
    assert drafts[0].base_len == 3
    await proposer.aclose()


async def test_a_stream_with_very_many_sessions_holds_up_nobody_else() -> None:
    """B101: batches are bounded and shared out."""
    drafter = RecordingDrafter(seconds_per_batch=0.01)
    proposer = BatchingProposer(drafter)
    many = [DraftJob(drafter.open(SPEC), LIMITS) for _ in range(10 * MAX_BATCH)]
    one = [DraftJob(drafter.open(SPEC), LIMITS)]

    crowd = asyncio.create_task(proposer.propose(many))
    await asyncio.sleep(0)
    drafts = await proposer.propose(one)

    assert len(drafts) == 1
    assert not crowd.done()
    assert len(await crowd) == len(many)
    assert max(drafter.batch_sizes) <= MAX_BATCH
    await proposer.aclose()
