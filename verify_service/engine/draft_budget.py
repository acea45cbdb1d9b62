"""
How many nodes each sequence verifies this step: one sort over all sequences' nodes, cut where the
expected tokens per second peak (goodput; Liu et al. 2024, "SmartSpec"). Pure.

A node's survival is the product of the calibrated hit rates from the root, so it never exceeds its
parent's and any prefix of the sorted nodes holds every kept node's ancestors.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.tree import TokenTree
from verify_service.engine.draft_trie import DraftTrie, TrieNode

MIN_SURVIVAL = 0.01
"""Nodes less likely than this are never worth the look."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trie node with its survival; ``parent`` indexes the same list, -1 being the root."""

    node: TrieNode
    parent: int
    depth: int
    survival: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of a budget decision."""

    trees: tuple[TokenTree, ...]  # [num_sequences]
    expected_tokens: float
    expected_gain: float
    """Expected tokens per second with these trees, divided by without."""


def candidates(
    trie: DraftTrie, rate: Callable[[float], float], *, max_nodes: int, max_depth: int
) -> list[Candidate]:
    """Return the likeliest nodes, best first, parents before children."""
    found: list[Candidate] = []
    heap: list[tuple[float, int, int, int, TrieNode]] = []
    order = 0

    def offer(parent: TrieNode, index: int, depth: int, survival: float) -> None:
        nonlocal order
        for child in parent.children.values():
            share = survival * rate(child.log_prob)
            if share >= MIN_SURVIVAL:
                heapq.heappush(heap, (-share, order, index, depth, child))
                order += 1

    if max_depth > 0:
        offer(trie.root, -1, 1, 1.0)
    while heap and len(found) < max_nodes:
        negative, _, parent, depth, node = heapq.heappop(heap)
        found.append(Candidate(node, parent, depth, -negative))
        if depth < max_depth:
            offer(node, len(found) - 1, depth + 1, -negative)
    return found


def plan(
    offers: Sequence[Sequence[Candidate]], curve: Sequence[float], num_fixed_rows: int
) -> Plan:
    """
    Cut all offers where expected goodput peaks.

    ``curve[rows]`` is the cost of a step; ``num_fixed_rows`` rows (roots) run anyway.
    """
    ranked = sorted(
        (
            (-candidate.survival, sequence, index)
            for sequence, offer in enumerate(offers)
            for index, candidate in enumerate(offer)
        ),
    )
    num_roots = max(len(offers), 1)
    plain = num_roots / curve[min(num_fixed_rows, len(curve) - 1)]
    best_goodput, best_count = plain, 0
    expected, best_expected = float(num_roots), float(num_roots)
    for count, (negative, _, _) in enumerate(ranked, start=1):
        rows = num_fixed_rows + count
        if rows >= len(curve):
            break
        expected -= negative
        goodput = expected / curve[rows]
        if goodput > best_goodput:
            best_goodput, best_count, best_expected = goodput, count, expected
    kept: list[set[int]] = [set() for _ in offers]
    for _, sequence, index in ranked[:best_count]:
        kept[sequence].add(index)
    trees = tuple(tree_of(offer, keep) for offer, keep in zip(offers, kept, strict=True))
    return Plan(trees, best_expected, best_goodput / plain)


def tree_of(offer: Sequence[Candidate], keep: set[int]) -> TokenTree:
    """Return the kept nodes as a tree, the likeliest path numbered first."""
    children: dict[int, list[int]] = {}
    for index in sorted(keep):
        children.setdefault(offer[index].parent, []).append(index)
    token_ids: list[int] = []
    parents: list[int] = []
    log_probs: list[float] = []
    stack = [(index, 0) for index in reversed(children.get(-1, ()))]
    while stack:
        index, parent = stack.pop()
        token_ids.append(offer[index].node.token_id)
        parents.append(parent)
        log_probs.append(min(offer[index].node.log_prob, 0.0))
        number = len(token_ids)
        stack.extend((child, number) for child in reversed(children.get(index, ())))
    return TokenTree(tuple(token_ids), tuple(parents), tuple(log_probs))
