"""The laws of the draft trie: facts may come late, twice and in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import TokenTree
from verify_service.engine.draft_trie import (
    UNKNOWN_LOG_PROB,
    DraftTrie,
    MergeOutcome,
    Observation,
    TrieNode,
)

NUM_TOKENS = 3
Contents = dict[tuple[int, ...], float]
Fact = tuple[int, TokenTree]

log_probs = st.sampled_from([-3.0, -1.0, -0.5, 0.0])


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 10) -> TokenTree:
    """Return a tree over few tokens, so that facts overlap."""
    nodes: dict[tuple[int, int], float] = {}
    for _ in range(draw(st.integers(0, max_nodes))):
        key = (draw(st.integers(0, len(nodes))), draw(st.integers(0, NUM_TOKENS - 1)))
        nodes.setdefault(key, draw(log_probs))
    return TokenTree(
        tuple(token_id for _, token_id in nodes),
        tuple(parent for parent, _ in nodes),
        tuple(nodes.values()),
    )


committed_ids = st.lists(st.integers(0, NUM_TOKENS - 1), max_size=4)
facts = st.lists(st.tuples(st.integers(0, 4), trees()), max_size=5)


def contents(trie: DraftTrie) -> Contents:
    """Return the log-probability of every path."""
    found: Contents = {}

    def visit(node: TrieNode, path: tuple[int, ...]) -> None:
        for child in node.children.values():
            found[*path, child.token_id] = child.log_prob
            visit(child, (*path, child.token_id))

    visit(trie.root, ())
    assert set(trie.paths()) == set(found)
    assert trie.num_nodes == len(found) == trie.root.count()
    return found


def merged(facts: list[Fact], committed: list[int], max_nodes: int = 1000) -> DraftTrie:
    """Return a trie that has heard all facts."""
    trie = DraftTrie(max_nodes)
    for base_len, tree in facts:
        trie.merge(base_len, tree, committed)
    return trie


def model(facts: list[Fact], committed: list[int]) -> Contents:
    """Return what the facts say, path by path: the oracle."""
    expected: Contents = {}
    for base_len, tree in facts:
        since = tuple(committed[base_len:])
        if base_len > len(committed):
            continue
        for node in range(1, tree.num_nodes + 1):
            path = tree.path(node)
            if len(path) > len(since) and path[: len(since)] == since:
                rest = path[len(since) :]
                log_prob = tree.log_probs[node - 1]
                expected[rest] = max(expected.get(rest, -99.0), log_prob)
    return expected


@given(facts=facts, committed=committed_ids, seed=st.integers(0, 100))
def test_merge_is_commutative_idempotent_and_says_what_the_facts_say(
    facts: list[Fact], committed: list[int], seed: int
) -> None:
    shuffled = [*facts, *facts]
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, not a secret

    assert contents(merged(facts, committed)) == model(facts, committed)
    assert contents(merged(shuffled, committed)) == model(facts, committed)


@given(facts=facts, committed=committed_ids, new=committed_ids)
def test_merging_then_committing_equals_committing_then_merging(
    facts: list[Fact], committed: list[int], new: list[int]
) -> None:
    """Re-rooting: a late fact says the same as a punctual one that lived through the commits."""
    punctual = merged(facts, committed)
    punctual.advance(new)
    known = [fact for fact in facts if fact[0] <= len(committed)]
    late = merged(known, [*committed, *new])

    assert contents(punctual) == contents(late)


@given(tree=trees(), committed=committed_ids, base_len=st.integers(0, 6))
def test_outcome_tells_ahead_stale_and_merged_apart(
    tree: TokenTree, committed: list[int], base_len: int
) -> None:
    trie = DraftTrie()

    outcome = trie.merge(base_len, tree, committed)

    since = tuple(committed[base_len:])
    on_tree = {(), *(tree.path(node) for node in range(1, tree.num_nodes + 1))}
    if base_len > len(committed):
        assert outcome is MergeOutcome.AHEAD
    else:
        assert outcome is (MergeOutcome.MERGED if since in on_tree else MergeOutcome.STALE)
    if outcome is not MergeOutcome.MERGED:
        assert trie.num_nodes == 0


@given(facts=facts, max_nodes=st.integers(0, 6), new=committed_ids)
def test_trie_never_holds_more_than_its_cap(
    facts: list[Fact], max_nodes: int, new: list[int]
) -> None:
    trie = merged(facts, [], max_nodes)
    said = model(facts, [])

    held = contents(trie)
    assert len(held) <= max_nodes
    assert set(held) <= set(said)
    assert held == said or len(held) == max_nodes
    trie.advance(new)
    assert trie.num_nodes <= max_nodes


def test_full_trie_still_hears_better_estimates_of_what_it_holds() -> None:
    trie = DraftTrie(1)
    trie.merge(0, TokenTree.chain([1], [-2.0]), [])

    trie.merge(0, TokenTree((1, 2), (0, 0), (-1.0, -0.1)), [])

    assert contents(trie) == {(1,): -1.0}


def test_room_freed_by_a_commit_is_used_again() -> None:
    trie = DraftTrie(2)
    trie.merge(0, TokenTree((1, 2), (0, 0)), [])

    trie.advance([1])
    trie.merge(1, TokenTree.chain([3, 4]), [1])

    assert set(contents(trie)) == {(3,), (3, 4)}


def test_drafter_without_estimates_is_believed_by_half() -> None:
    trie = DraftTrie()
    trie.merge(0, TokenTree.chain([1]), [])

    assert contents(trie) == {(1,): UNKNOWN_LOG_PROB}


def test_commit_tells_about_every_child_on_its_way() -> None:
    trie = DraftTrie()
    tree = TokenTree((1, 2, 3, 4, 5), (0, 0, 1, 1, 2), (-0.1, -0.2, -0.3, -0.4, -0.5))
    trie.merge(0, tree, [])

    observations = trie.advance([1, 4, 9])

    assert observations == [
        Observation(-0.1, hit=True),
        Observation(-0.2, hit=False),
        Observation(-0.3, hit=False),
        Observation(-0.4, hit=True),
    ]
    assert trie.num_nodes == 0


def test_commit_off_the_trie_clears_it_and_asks_no_further() -> None:
    """Once off the drafted paths there is nothing that later tokens could tell."""
    trie = DraftTrie()
    trie.merge(0, TokenTree.chain([1, 2, 3]), [])

    observations = trie.advance([7, 2, 3])

    assert observations == [Observation(UNKNOWN_LOG_PROB, hit=False)]
    assert contents(trie) == {}


@pytest.mark.parametrize("base_len", [0, 1, 2])
def test_empty_fact_is_harmless(base_len: int) -> None:
    """B070: an empty tree is a legal thing to say."""
    trie = DraftTrie()
    trie.merge(2, TokenTree.chain([5]), [1, 2])

    trie.merge(base_len, TokenTree(), [1, 2])

    assert set(contents(trie)) == {(5,)}
