"""
What every draft service guarantees. This suite plays the verifier.

It runs against a service in this process, or against any other with ``--draft-address``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.codec import speaks_our_protocol, tree_from_proto
from paceline.v1.draft_service_pb2 import SessionCommit, SessionOpen
from tests.doubles.played_verifier import capabilities_of, played_verifier, proposal_in

pytestmark = pytest.mark.asyncio

CYCLE = list(range(100, 140))
"""A passage that repeats: any drafter has something to say about it."""

PROMPT = CYCLE * 3 + CYCLE[:10]


def session_open(
    session_id: int,
    token_ids: Sequence[int] = PROMPT,
    *,
    tenant: str = "",
    max_draft_tokens: int = 0,
    max_tree_depth: int = 0,
) -> SessionOpen:
    """Return the message that opens a session."""
    return SessionOpen(
        session_id=session_id,
        committed_token_ids=token_ids,
        tenant=tenant,
        max_draft_tokens=max_draft_tokens,
        max_tree_depth=max_tree_depth,
    )


def commit(session_id: int, base_len: int, token_ids: Sequence[int]) -> SessionCommit:
    """Return the message that commits tokens."""
    return SessionCommit(session_id=session_id, base_len=base_len, token_ids=token_ids)


async def test_capabilities_are_complete_and_consistent(draft_address: str) -> None:
    capabilities = await capabilities_of(draft_address)

    assert capabilities.name
    assert capabilities.version
    assert capabilities.drafter
    assert capabilities.tokenizer_fingerprint
    assert 1 <= capabilities.max_tree_depth <= capabilities.max_draft_tokens
    assert capabilities.max_sessions >= 1


async def test_capabilities_hold_our_protocol_version(draft_address: str) -> None:
    """B074: another protocol version is seen at the handshake."""
    capabilities = await capabilities_of(draft_address)

    assert speaks_our_protocol(capabilities.protocol)


async def test_opening_a_session_brings_a_tree_for_its_length(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])

        tree = await verifier.proposal(1, len(PROMPT))

    assert tree.num_nodes > 0


async def test_trees_keep_the_advertised_limits(draft_address: str) -> None:
    """B109: depth above the limits is clamped by the drafter."""
    capabilities = await capabilities_of(draft_address)
    async with played_verifier(draft_address) as verifier:
        await verifier.send(
            opens=[session_open(1, max_draft_tokens=2**32 - 1, max_tree_depth=2**32 - 1)]
        )

        tree = await verifier.proposal(1, len(PROMPT))

    tree.check_limits(
        max_nodes=capabilities.max_draft_tokens,
        max_depth=capabilities.max_tree_depth,
        vocab_size=capabilities.vocab_size or 2**31,
    )


async def test_trees_keep_the_limits_of_their_session(draft_address: str) -> None:
    """B096: limits given per session arrive."""
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1, max_draft_tokens=5, max_tree_depth=2)])

        tree = await verifier.proposal(1, len(PROMPT))

    tree.check_limits(max_nodes=5, max_depth=2, vocab_size=2**31)


async def test_every_node_has_a_log_probability_that_may_be_one(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])

        tree = await verifier.proposal(1, len(PROMPT))

    assert len(tree.log_probs) in {0, tree.num_nodes}
    assert all(-100.0 < log_prob <= 0.0 for log_prob in tree.log_probs)


async def test_a_commit_moves_the_base_of_the_next_tree(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        await verifier.proposal(1, len(PROMPT))

        await verifier.send(commits=[commit(1, len(PROMPT), CYCLE[10:14])])
        tree = await verifier.proposal(1, len(PROMPT) + 4)

    assert tree.num_nodes > 0


async def test_a_session_goes_on_when_its_drafts_were_rejected(draft_address: str) -> None:
    """B042: a rejected draft leaves the session usable."""
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        await verifier.proposal(1, len(PROMPT))

        await verifier.send(commits=[commit(1, len(PROMPT), [7])])
        await verifier.proposal(1, len(PROMPT) + 1)
        await verifier.send(commits=[commit(1, len(PROMPT) + 1, CYCLE)])
        tree = await verifier.proposal(1, len(PROMPT) + 1 + len(CYCLE))

    assert tree.num_nodes > 0


async def test_a_commit_that_follows_its_open_in_one_message_counts(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)], commits=[commit(1, len(PROMPT), CYCLE[10:12])])

        await verifier.proposal(1, len(PROMPT) + 2)


async def test_commits_to_an_unopened_session_are_reported(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(commits=[commit(77, 4, [1, 2])])

        response = await verifier.receive()

    assert list(response.unknown_session_ids) == [77]


async def test_a_closed_session_is_unknown_and_silent(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        await verifier.proposal(1, len(PROMPT))
        await verifier.send(closes=[1])

        await verifier.send(commits=[commit(1, len(PROMPT), [1])])
        response = await verifier.receive_unknown()

    assert list(response.unknown_session_ids) == [1]
    assert not response.proposals


async def test_a_repeated_commit_changes_nothing(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        repeated = commit(1, len(PROMPT), CYCLE[10:14])

        await verifier.send(commits=[repeated, repeated])
        await verifier.proposal(1, len(PROMPT) + 4)
        await verifier.send(commits=[repeated, commit(1, len(PROMPT) + 4, CYCLE[14:15])])

        await verifier.proposal(1, len(PROMPT) + 5)


async def test_a_commit_may_overlap_what_is_known(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])

        await verifier.send(commits=[commit(1, len(PROMPT) - 3, PROMPT[-3:] + CYCLE[10:12])])

        await verifier.proposal(1, len(PROMPT) + 2)


@pytest.mark.parametrize(
    ("base_len", "token_ids"),
    [(len(PROMPT) + 1, [1]), (2**32 - 1, [1]), (len(PROMPT) - 1, [7, 8])],
    ids=["gap", "far gap", "contradiction"],
)
async def test_a_commit_that_does_not_fit_makes_the_session_unknown(
    draft_address: str, base_len: int, token_ids: list[int]
) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        await verifier.proposal(1, len(PROMPT))

        await verifier.send(commits=[commit(1, base_len, token_ids)])
        response = await verifier.receive_unknown()
        await verifier.send(opens=[session_open(1)])
        tree = await verifier.proposal(1, len(PROMPT))

    assert list(response.unknown_session_ids) == [1]
    assert tree.num_nodes > 0


async def test_an_unknown_session_can_be_opened_again(draft_address: str) -> None:
    """After a restart of the draft service a verifier's sessions are unknown to it."""
    longer = PROMPT + CYCLE[10:20]
    async with played_verifier(draft_address) as verifier:
        await verifier.send(commits=[commit(9, len(PROMPT), CYCLE[10:20])])
        response = await verifier.receive()

        await verifier.send(opens=[session_open(9, longer)])
        tree = await verifier.proposal(9, len(longer))

    assert list(response.unknown_session_ids) == [9]
    assert tree.num_nodes > 0


async def test_empty_messages_and_unknown_closes_are_harmless(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send()
        await verifier.send(closes=[5, 2**64 - 1])
        await verifier.send()

        await verifier.send(opens=[session_open(1)])

        await verifier.proposal(1, len(PROMPT))


async def test_any_64_bit_number_is_a_session_id(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(0), session_open(2**64 - 1)])
        response = await verifier.receive_of([0, 2**64 - 1])

    assert {proposal.session_id for proposal in response.proposals} == {0, 2**64 - 1}


async def test_a_token_id_that_no_vocabulary_holds_ends_only_its_session(
    draft_address: str,
) -> None:
    """B079: ids out of range never reach the drafter's tables."""
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1, [*PROMPT, 2**32 - 1]), session_open(2)])
        response = await verifier.receive_of([1, 2])
        await verifier.send(commits=[commit(2, len(PROMPT), CYCLE[10:12])])
        await verifier.proposal(2, len(PROMPT) + 2)

    assert [refusal.session_id for refusal in response.refusals] == [1]
    assert proposal_in(response, 2) is not None


async def test_a_session_without_tokens_is_legal(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1, [])])
        await verifier.send(commits=[commit(1, 0, PROMPT)])

        await verifier.proposal(1, len(PROMPT))


async def test_opening_a_session_again_replaces_it(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        await verifier.proposal(1, len(PROMPT))

        await verifier.send(opens=[session_open(1, PROMPT[:50])])

        await verifier.proposal(1, 50)


async def test_a_step_of_many_sessions_is_one_message_each_way(draft_address: str) -> None:
    """Or two: a batch that was under way as the commits came may have met some of them."""
    newest = len(PROMPT) + 3
    async with played_verifier(draft_address) as verifier:
        ids = list(range(1, 65))
        await verifier.send(opens=[session_open(session_id) for session_id in ids])
        first = await verifier.receive_of(ids)
        await verifier.send(commits=[commit(i, len(PROMPT), CYCLE[10:13]) for i in ids])
        answered: list[set[int]] = []
        while set().union(*answered) != set(ids):
            message = await verifier.receive_for(newest)
            assert {each.base_len for each in message.proposals} <= {len(PROMPT), newest}
            answered.append({p.session_id for p in message.proposals if p.base_len == newest})

    assert {proposal.session_id for proposal in first.proposals} == set(ids)
    assert len(answered) <= 2


async def test_equal_sessions_get_equal_trees(draft_address: str) -> None:
    """B062, B066: what a session gets does not depend on its neighbours."""
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        alone = await verifier.proposal(1, len(PROMPT))
        others = [session_open(i, list(range(i, i + 50)) * 2) for i in range(10, 20)]
        await verifier.send(opens=[*others, session_open(2)])
        among_others = await verifier.proposal(2, len(PROMPT))

    assert among_others == alone


async def test_a_session_learns_nothing_from_another_tenant(draft_address: str) -> None:
    secret = list(range(9000, 9040))
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1, (CYCLE + secret) * 4, tenant="a")])
        await verifier.proposal(1, 4 * len(CYCLE + secret))

        await verifier.send(opens=[session_open(2, CYCLE, tenant="b")])
        tree = await verifier.proposal(2, len(CYCLE))

    assert not set(tree.token_ids) & set(secret)


async def test_streams_do_not_share_session_ids(draft_address: str) -> None:
    async with played_verifier(draft_address) as one, played_verifier(draft_address) as other:
        await one.send(opens=[session_open(1)])
        await one.proposal(1, len(PROMPT))

        await other.send(commits=[commit(1, len(PROMPT), [1])])
        response = await other.receive()
        await one.send(commits=[commit(1, len(PROMPT), CYCLE[10:11])])
        await one.proposal(1, len(PROMPT) + 1)

    assert list(response.unknown_session_ids) == [1]


async def test_a_stream_that_ends_closes_its_sessions(draft_address: str) -> None:
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1)])
        await verifier.proposal(1, len(PROMPT))
        await verifier.end()
    async with played_verifier(draft_address) as verifier:
        await verifier.send(commits=[commit(1, len(PROMPT), [1])])
        response = await verifier.receive()

    assert list(response.unknown_session_ids) == [1]


async def test_unread_answers_give_way_to_the_newest(draft_address: str) -> None:
    """A verifier that does not read gets its newest trees and slows down nobody."""
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1, [*PROMPT, 1])])
        for step in range(500):
            await verifier.send(commits=[commit(1, len(PROMPT) + 1 + step, [step % 7])])
        await verifier.send(commits=[commit(1, len(PROMPT) + 501, CYCLE)])

        await verifier.proposal(1, len(PROMPT) + 501 + len(CYCLE))


async def test_64_sessions_are_answered_in_one_message_a_step(draft_address: str) -> None:
    """B101, B102: drafting for a full batch costs one message each way."""
    async with played_verifier(draft_address) as verifier:
        ids = range(64)
        await verifier.send(opens=[session_open(session_id) for session_id in ids])
        await verifier.receive_of(ids)
        for step in range(8):
            base_len = len(PROMPT) + 3 * step
            tokens = [CYCLE[(10 + 3 * step + offset) % 40] for offset in range(3)]
            await verifier.send(commits=[commit(i, base_len, tokens) for i in ids])
            response = await verifier.receive_for(base_len + 3)

            assert {proposal.session_id for proposal in response.proposals} == set(ids)


async def test_trees_on_the_wire_are_well_formed(draft_address: str) -> None:
    """B074: no cycle, forward parent or repeated sibling leaves a draft service."""
    forking = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2] * 6
    async with played_verifier(draft_address) as verifier:
        await verifier.send(opens=[session_open(1, forking)])
        response = await verifier.receive()

    trees = [tree_from_proto(proposal.tree) for proposal in response.proposals]
    assert trees
