"""The node budget against brute force: which nodes are worth their rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from paceline.tree import TokenTree
from verify_service.engine.draft_budget import (
    MIN_SURVIVAL,
    Candidate,
    candidates,
    cut,
    tree_of,
)
from verify_service.engine.draft_trie import DraftTrie, TrieNode

FORK = TokenTree(
    (1, 2, 3, 4, 5),
    (0, 0, 1, 1, 2),
    tuple(math.log(share) for share in (0.6, 0.3, 0.5, 0.4, 0.9)),
)
"""Survivals: 0.6, 0.3; below 1: 0.3, 0.24; below 2: 0.27."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cut leaves of each offer."""

    trees: tuple[TokenTree, ...]  # [num_sequences]
    expected_tokens: float
    expected_gain: float


def plan(offers: Sequence[Sequence[Candidate]], curve: ArrayLike, num_fixed_rows: int) -> Plan:
    """Return each offer's part of the ``cut`` as a tree."""
    survivals = np.array([candidate.survival for offer in offers for candidate in offer])
    ends = np.cumsum([len(offer) for offer in offers], dtype=np.int64)
    made = cut(survivals, ends, np.asarray(curve, np.float64), num_fixed_rows)
    trees = tuple(
        tree_of(offer[:count]) for offer, count in zip(offers, made.counts.tolist(), strict=True)
    )
    return Plan(trees, made.expected_tokens, made.expected_gain)


def _trie(tree: TokenTree) -> DraftTrie:
    trie = DraftTrie()
    trie.merge(0, tree, [])
    return trie


def _offer(tree: TokenTree, *, max_nodes: int = 64, max_depth: int = 64) -> list[Candidate]:
    return candidates(_trie(tree), math.exp, max_nodes=max_nodes, max_depth=max_depth)


@st.composite
def weighted_trees(draw: st.DrawFn) -> TokenTree:
    """Return a small tree with estimates."""
    num_nodes = draw(st.integers(0, 6))
    shares = [draw(st.sampled_from([0.05, 0.2, 0.5, 0.8, 1.0])) for _ in range(num_nodes)]
    parents = tuple(draw(st.integers(0, node)) for node in range(num_nodes))
    return TokenTree(tuple(range(num_nodes)), parents, tuple(math.log(share) for share in shares))


def _survivals(tree: TokenTree) -> list[float]:
    survivals = [1.0]
    for parent, log_prob in zip(tree.parents, tree.log_probs, strict=True):
        survivals.append(survivals[parent] * math.exp(log_prob))
    return survivals[1:]


def test_candidates_come_best_first() -> None:
    offer = _offer(FORK)

    assert [each.node.token_id for each in offer] == [1, 2, 3, 5, 4]
    assert [each.survival for each in offer] == pytest.approx([0.6, 0.3, 0.3, 0.27, 0.24])
    assert [each.parent for each in offer] == [-1, -1, 0, 1, 0]
    assert [each.depth for each in offer] == [1, 1, 2, 2, 2]


@given(tree=weighted_trees(), max_nodes=st.integers(0, 7), max_depth=st.integers(0, 4))
def test_candidates_are_the_likeliest_nodes_within_the_limits(
    tree: TokenTree, max_nodes: int, max_depth: int
) -> None:
    offer = _offer(tree, max_nodes=max_nodes, max_depth=max_depth)

    within = zip(_survivals(tree), tree.depths(), strict=True)
    best = sorted((s for s, depth in within if depth <= max_depth and s >= MIN_SURVIVAL))[::-1]
    assert [each.survival for each in offer] == pytest.approx(best[:max_nodes])
    assert all(each.parent < index for index, each in enumerate(offer))


@pytest.mark.parametrize(("max_nodes", "max_depth"), [(0, 9), (9, 0)])
def test_no_room_means_no_candidates(max_nodes: int, max_depth: int) -> None:
    """B039, B040: one token before the limit there is nothing to draft."""
    assert _offer(FORK, max_nodes=max_nodes, max_depth=max_depth) == []


def _best_goodput(trees: Sequence[TokenTree], curve: Sequence[float], fixed: int) -> float:
    """Try every set of nodes that holds its ancestors."""
    nodes = [
        (sequence, node, tree.parents[node - 1], survival)
        for sequence, tree in enumerate(trees)
        for node, survival in enumerate(_survivals(tree), start=1)
        if survival >= MIN_SURVIVAL
    ]
    best = len(trees) / curve[fixed]
    for size in range(1, min(len(nodes), len(curve) - 1 - fixed) + 1):
        for chosen in itertools.combinations(nodes, size):
            kept = {(sequence, node) for sequence, node, _, _ in chosen}
            if all(p == 0 or (sequence, p) in kept for sequence, _, p, _ in chosen):
                expected = len(trees) + sum(survival for *_, survival in chosen)
                best = max(best, expected / curve[fixed + size])
    return best


@given(
    trees=st.lists(weighted_trees(), min_size=1, max_size=2),
    costs=st.lists(st.floats(0.0, 0.6), min_size=6, max_size=14),
)
def test_plan_is_the_best_of_all_plans(trees: list[TokenTree], costs: list[float]) -> None:
    curve = [1.0 + cost for cost in itertools.accumulate(costs)]
    fixed = len(trees)

    planned = plan([_offer(tree) for tree in trees], curve, fixed)

    goodput = planned.expected_tokens / curve[fixed + sum(t.num_nodes for t in planned.trees)]
    assert goodput == pytest.approx(_best_goodput(trees, curve, fixed))
    assert planned.expected_gain == pytest.approx(goodput / (len(trees) / curve[fixed]))
    for kept, tree in zip(planned.trees, trees, strict=True):
        offered = {tree.path(node) for node in range(1, tree.num_nodes + 1)}
        assert {kept.path(node) for node in range(1, kept.num_nodes + 1)} <= offered


def test_free_rows_are_all_used() -> None:
    planned = plan([_offer(FORK)], [1.0] * 20, 1)

    assert planned.trees[0].num_nodes == 5
    assert planned.expected_tokens == pytest.approx(2.71)


def test_steep_costs_leave_the_plain_step() -> None:
    """B100: where every row costs its full share, nothing is drafted."""
    planned = plan([_offer(FORK)] * 3, [float(max(rows, 1)) for rows in range(40)], 3)

    assert [tree.num_nodes for tree in planned.trees] == [0, 0, 0]
    assert planned.expected_gain == 1.0


def test_sure_sequence_gets_the_rows_of_an_unsure_one() -> None:
    sure = TokenTree.chain([1, 2, 3], [-0.01] * 3)
    unsure = TokenTree.chain([1, 2, 3], [-2.0] * 3)
    curve = [1.0, 1.0, 1.0, 1.2, 1.4, 1.6, 3.0, 9.0, 9.0]

    planned = plan([_offer(unsure), _offer(sure)], curve, 2)

    assert [tree.num_nodes for tree in planned.trees] == [0, 3]


@pytest.mark.parametrize(("fixed", "num_nodes"), [(1, 5), (5, 3), (7, 1), (8, 0), (9, 0), (500, 0)])
def test_rows_never_exceed_the_table(fixed: int, num_nodes: int) -> None:
    """B075: exactly at the row budget, one above, and far above under a large prefill."""
    planned = plan([_offer(FORK)], [1.0] * 9, fixed)

    assert planned.trees[0].num_nodes == num_nodes


def test_nothing_offered_is_the_plain_step() -> None:
    planned = plan([[], []], [1.0] * 9, 2)

    assert planned.trees == (TokenTree(), TokenTree())
    assert planned.expected_gain == 1.0


def test_best_path_is_numbered_first() -> None:
    """The common case then moves no KV."""
    tree = tree_of(_offer(FORK))

    assert tree.token_ids == (1, 3, 4, 2, 5)
    assert tree.parents == (0, 1, 1, 0, 4)


@given(weighted_trees())
def test_first_child_follows_its_parent(tree: TokenTree) -> None:
    numbered = tree_of(_offer(tree))

    first_child: dict[int, int] = {}
    for node, parent in enumerate(numbered.parents, start=1):
        first_child.setdefault(parent, node)
    assert all(node == parent + 1 for parent, node in first_child.items())


def test_impossible_estimate_is_never_offered() -> None:
    assert _offer(TokenTree((1,), (0,), (-math.inf,))) == []


def test_calibrated_rate_decides_not_the_raw_estimate() -> None:
    trie = _trie(TokenTree((1, 2), (0, 0), (-0.1, -3.0)))

    offer = candidates(
        trie, lambda log_prob: 0.1 if log_prob > -1 else 0.9, max_nodes=9, max_depth=9
    )

    assert [each.node.token_id for each in offer] == [2, 1]


def test_tree_of_a_part_renumbers_parents() -> None:
    leaf = TrieNode(9, -0.5)
    offer = [Candidate(TrieNode(7, 0.0), -1, 1, 0.9), Candidate(leaf, 0, 2, 0.5)]

    assert tree_of(offer) == TokenTree((7, 9), (0, 1), (0.0, -0.5))
    assert tree_of(offer[:1]) == TokenTree((7,), (0,), (0.0,))


def _sorted_cut(
    survivals: Sequence[Sequence[float]], curve: Sequence[float], fixed: int, prefill: int = 0
) -> tuple[list[int], float, float]:
    """One sort over all nodes and every cut of it: what ``cut`` has to equal."""
    ranked = sorted((-s, i, j) for i, offer in enumerate(survivals) for j, s in enumerate(offer))
    costs = curve[fixed : fixed + len(ranked) + 1]
    if len(costs) <= 1:
        return [0] * len(survivals), float(len(survivals)), 1.0
    sums = [0.0, *itertools.accumulate(-negative for negative, _, _ in ranked)]
    expected = [len(survivals) + total for total in sums[: len(costs)]]
    goodput = [tokens / cost for tokens, cost in zip(expected, costs, strict=True)]
    best = goodput.index(max(goodput))
    if prefill:
        dearer = curve[fixed + prefill :]
        rate = goodput[best]
        worth = [tokens - rate * cost for tokens, cost in zip(expected, dearer, strict=False)]
        best = worth.index(max(worth)) if worth else 0
    counts = [0] * len(survivals)
    for _, sequence, _ in ranked[:best]:
        counts[sequence] += 1
    return counts, expected[best], goodput[best] / goodput[0]


def _equals_a_full_sort(
    offers: Sequence[Sequence[float]], curve: Sequence[float], prefill: int
) -> bool:
    flat = np.array([share for offer in offers for share in offer], np.float64)
    ends = np.cumsum([len(offer) for offer in offers], dtype=np.int64)

    made = cut(flat, ends, np.array(curve), len(offers), prefill)

    found = (made.counts.tolist(), made.expected_tokens, made.expected_gain)
    return found == _sorted_cut(offers, curve, len(offers), prefill)


@st.composite
def sorted_survivals(draw: st.DrawFn) -> list[list[float]]:
    """Return offers of survivals, equal ones among them."""
    share = st.one_of(st.sampled_from([1.0, 0.5, 0.25, 0.0625]), st.floats(MIN_SURVIVAL, 1.0))
    offers = draw(st.lists(st.lists(share, max_size=12), min_size=1, max_size=24))
    return [sorted(offer, reverse=True) for offer in offers]


@given(
    survivals=sorted_survivals(),
    knee=st.integers(1, 200),
    slope=st.sampled_from([0.0, 0.001, 0.01, 0.05, 1.0]),
    num_rows=st.integers(1, 320),
    prefill=st.sampled_from([0, 0, 1, 30, 400]),
)
def test_cut_equals_a_full_sort(
    survivals: list[list[float]], knee: int, slope: float, num_rows: int, prefill: int
) -> None:
    curve = [1.0 + slope * max(0, rows - knee) for rows in range(num_rows + 1)]

    assert _equals_a_full_sort(survivals, curve, prefill)


@given(
    survivals=sorted_survivals(),
    steps=st.lists(st.sampled_from([0.0, 0.0, 1e-4, 0.02, 0.3]), min_size=1, max_size=320),
    prefill=st.sampled_from([0, 0, 3, 60]),
)
def test_cut_equals_a_full_sort_on_any_staircase_of_costs(
    survivals: list[list[float]], steps: list[float], prefill: int
) -> None:
    """Costs that stand still and jump have many peaks: the search may not stop at the first."""
    assert _equals_a_full_sort(
        survivals, [1.0, *(1.0 + c for c in itertools.accumulate(steps))], prefill
    )


def test_prefill_beside_it_does_not_make_a_node_look_cheap() -> None:
    """A long prompt makes the step dear, not the drafts worthwhile."""
    curve = np.array([1.0 + 0.02 * rows for rows in range(2000)])
    survivals, ends = np.full(8, 0.15), np.arange(1, 9)

    alone = cut(survivals, ends, curve, 8)
    beside = cut(survivals, ends, curve, 8, 1000)
    by_ratio = cut(survivals, ends, curve, 1008)

    assert alone.counts.sum() == 8
    assert beside.counts.sum() == 8
    assert by_ratio.counts.sum() == 8

    dear = np.full(8, 0.1)
    assert cut(dear, ends, curve, 8).counts.sum() == 0
    assert cut(dear, ends, curve, 1008).counts.sum() == 8
    assert cut(dear, ends, curve, 8, 1000).counts.sum() == 0


def test_prefill_that_leaves_no_rows_leaves_no_nodes() -> None:
    made = cut(np.full(4, 0.9), np.arange(1, 5), np.ones(20), 4, 16)

    assert made.counts.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slope", [0.0, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("prefill", [0, 500])
def test_many_nodes_are_cut_where_sorting_all_of_them_would(
    seed: int, slope: float, prefill: int
) -> None:
    """B075: the search ends once nothing left can be better; never at another cut."""
    rng = np.random.default_rng(seed)
    num_sequences = int(rng.integers(1, 40))
    offers = [np.sort(rng.random(int(rng.integers(0, 400))))[::-1] for _ in range(num_sequences)]
    num_nodes = sum(offer.size for offer in offers)
    steps = slope * rng.choice([0.0, 0.2, 1.0, 4.0], size=num_sequences + num_nodes + prefill)
    curve = 1.0 + np.cumsum(np.concatenate(((0.0,), steps)))

    assert _equals_a_full_sort([offer.tolist() for offer in offers], curve.tolist(), prefill)


def test_impossible_survivals_stay_within_the_offers() -> None:
    """Compiled code checks no bounds: whatever comes in, no more is kept than was offered."""
    curve = np.ones(64)
    for bad in (math.nan, math.inf, -math.inf, 2.0, -1.0):
        survivals = np.array([0.9, bad, bad, bad, 0.8])

        counts = cut(survivals, np.array([2, 4, 5]), curve, 3).counts

        assert all(0 <= count <= size for count, size in zip(counts, (2, 2, 1), strict=True))
