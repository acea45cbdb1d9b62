"""Drafters that work ahead: asked on until a commit comes, and what is counted of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from draft_service.drafter import Draft, DraftLimits, SessionSpec
from draft_service.link import Answer, DraftLink
from draft_service.proposing import proposer_for
from draft_service.sent_trees import SentTrees
from draft_service.sessions import SessionTable, TableLimits
from paceline.tree import TokenTree
from tests.doubles.growing_drafter import GrowingDrafter

LIMITS = DraftLimits(max_draft_tokens=4, max_tree_depth=4)
SPEC = SessionSpec((1, 2, 3))
FORK = TokenTree((7, 8, 9), (0, 0, 1))
"""After 7 comes 9; after 8 nothing."""


def link_over(drafter: GrowingDrafter) -> DraftLink:
    """Return a link of its own table."""
    table = SessionTable(drafter, TableLimits(100, 1000, 60.0, 0.0, 8, 8))
    return DraftLink(1, table, proposer_for(drafter))


async def next_draft(answers: AsyncIterator[Answer], session_id: int = 1) -> Draft:
    """Return the session's draft in the next answer; fails when none comes."""
    return (await asyncio.wait_for(anext(answers), 5)).drafts[session_id]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_drafter_that_works_ahead_is_asked_until_it_has_said_all(is_blocking: bool) -> None:
    link = link_over(GrowingDrafter(is_blocking=is_blocking))
    link.open(1, SPEC, LIMITS)
    answers = link.answers()

    depths = [(await next_draft(answers)).tree.num_nodes for _ in range(4)]

    assert depths == [1, 2, 3, 4]


@pytest.mark.asyncio
async def test_a_commit_takes_the_place_of_working_ahead() -> None:
    link = link_over(GrowingDrafter())
    link.open(1, SPEC, LIMITS)
    answers = link.answers()
    await next_draft(answers)

    link.commit(1, 3, (4, 5))
    draft = await next_draft(answers)

    assert (draft.base_len, draft.tree.token_ids) == (5, (6,))


@pytest.mark.asyncio
async def test_nothing_is_sent_while_a_drafter_has_nothing_to_say_yet() -> None:
    drafter = GrowingDrafter(num_silent=3)
    link = link_over(drafter)
    link.open(1, SPEC, LIMITS)

    draft = await next_draft(link.answers())

    assert draft.tree.num_nodes == 1
    assert drafter.num_calls == 4


@pytest.mark.asyncio
async def test_a_closed_session_is_not_asked_on() -> None:
    drafter = GrowingDrafter()
    link = link_over(drafter)
    link.open(1, SPEC, LIMITS)
    answers = link.answers()
    await next_draft(answers)

    link.close(1)
    link.open(2, SPEC, LIMITS)
    await next_draft(answers, 2)

    assert drafter.num_calls == 2


@pytest.mark.asyncio
async def test_a_stream_that_has_ended_waits_for_no_work_ahead() -> None:
    link = link_over(GrowingDrafter())
    link.open(1, SPEC, LIMITS)
    link.end()

    assert len([answer async for answer in link.answers()]) == 1


def test_a_commit_within_the_tree_is_a_hit_with_the_depth_that_is_left() -> None:
    trees = SentTrees()
    trees.send(1, Draft(10, TokenTree.chain([4, 5, 6, 7])))

    trees.commit(1, 10, [4])
    trees.commit(1, 11, [5])

    assert trees.counts == {"hit": 2, "tokens_ahead": 3 + 2, "sent": 4, "followed": 2}


@pytest.mark.parametrize("token_ids", [[8], [7, 9], [5], [7, 9, 1]])
def test_a_commit_that_leaves_the_tree_or_its_end_is_a_miss(token_ids: list[int]) -> None:
    trees = SentTrees()
    trees.send(1, Draft(10, FORK))

    trees.commit(1, 10, token_ids)

    assert (trees.counts["hit"], trees.counts["miss"]) == (0, 1)


def test_tokens_that_are_committed_twice_are_followed_once() -> None:
    trees = SentTrees()
    trees.send(1, Draft(10, TokenTree.chain([4, 5, 6])))

    trees.commit(1, 10, [4])
    trees.commit(1, 10, [4])
    trees.commit(1, 10, [4, 5])

    assert trees.counts == {"hit": 2, "tokens_ahead": 2 + 1, "sent": 3, "followed": 2}


def test_nodes_that_a_larger_tree_repeats_count_once() -> None:
    trees = SentTrees()
    trees.send(1, Draft(10, TokenTree.chain([4, 5])))
    trees.send(1, Draft(10, TokenTree.chain([4, 5, 6])))

    trees.commit(1, 10, [4])
    trees.send(1, Draft(11, TokenTree.chain([5, 6, 7])))

    assert trees.counts["sent"] == 4


def test_a_tree_of_a_later_length_is_not_followed_from_an_earlier_one() -> None:
    trees = SentTrees()
    trees.send(1, Draft(10, TokenTree.chain([4, 5])))

    trees.commit(1, 11, [4])

    assert trees.counts["miss"] == 1


def test_sessions_that_are_never_closed_are_forgotten_at_last() -> None:
    trees = SentTrees()
    for session_id in range(10_000):
        trees.send(session_id, Draft(1, FORK))

    trees.commit(0, 1, [7])

    assert trees.counts["miss"] == 1
