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
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.tree import TokenTree
from verify_service.engine.draft_trie import DraftTrie, TrieNode

MIN_SURVIVAL = 0.003
"""Nodes less likely than this are never worth the look; where rows are free, those of 0.01 are."""

EMPTY = TokenTree()

Search = Callable[
    [
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.float64],
        int,
        int,
        NDArray[np.int64],
    ],
    tuple[float, float],
]


@cache
def prepare() -> Search:
    """Compile the search of ``cut``, or read it from the disk: seconds that no step may take."""
    # A verifier around another engine comes without numba; it cuts nothing.
    from verify_service.engine.best_cut import best_cut

    best_cut(np.zeros(1), np.ones(1, np.int64), np.ones(3), 1, 0, np.zeros(1, np.int64))
    return best_cut


class Candidate(NamedTuple):
    """A trie node with its survival; ``parent`` indexes the same list, -1 being the root."""

    node: TrieNode
    parent: int
    depth: int
    survival: float


@dataclass(frozen=True, slots=True)
class Cut:
    """How many of its best nodes each sequence verifies."""

    counts: NDArray[np.int64]  # [num_sequences]
    expected_tokens: float
    expected_gain: float
    """Expected tokens per second with these nodes, divided by without."""


def candidates(
    trie: DraftTrie, rate: Callable[[float], float], *, max_nodes: int, max_depth: int
) -> list[Candidate]:
    """Return the likeliest nodes, best first, parents before children."""
    found: list[Candidate] = []
    heap: list[tuple[float, int, int, int, TrieNode]] = []
    order = 0
    node, index, depth, survival = trie.root, -1, 0, 1.0
    while len(found) < max_nodes:
        for child in node.children.values() if depth < max_depth else ():
            share = survival * rate(child.log_prob)
            if share >= MIN_SURVIVAL:
                heapq.heappush(heap, (-share, order, index, depth + 1, child))
                order += 1
        if not heap:
            break
        negative, _, parent, depth, node = heapq.heappop(heap)
        index, survival = len(found), -negative
        found.append(Candidate(node, parent, depth, survival))
    return found


def cut(
    survivals: NDArray[np.float64],
    ends: NDArray[np.int64],
    curve: NDArray[np.float64],
    num_fixed_rows: int,
    num_prefill_rows: int = 0,
) -> Cut:
    """
    Cut all offers where expected goodput peaks; of equals, the first sequence's nodes go first.

    ``survivals`` are those of all offers, one after the other, each best first; an offer stops
    before its entry of ``ends``. ``curve[rows]`` is the cost of a step; ``num_fixed_rows`` rows
    (roots) run anyway.

    Rows of prefill make a step dear and its nodes look cheap, but that work has to be done whatever
    is drafted: beside it a node has to earn its row at the goodput that a step without it has.
    """
    counts = np.zeros(len(ends), np.int64)
    found = prepare()(survivals, ends, curve, num_fixed_rows, num_prefill_rows, counts)
    return Cut(counts, *found)


def tree_of(kept: Sequence[Candidate]) -> TokenTree:
    """Return candidates as a tree, the likeliest path numbered first."""
    if not kept:
        return EMPTY
    children: dict[int, list[int]] = {}
    for index, candidate in enumerate(kept):
        children.setdefault(candidate.parent, []).append(index)
    token_ids: list[int] = []
    parents: list[int] = []
    log_probs: list[float] = []
    stack = [(index, 0) for index in reversed(children.get(-1, ()))]
    while stack:
        index, parent = stack.pop()
        token_ids.append(kept[index].node.token_id)
        parents.append(parent)
        log_probs.append(min(kept[index].node.log_prob, 0.0))
        number = len(token_ids)
        stack.extend((child, number) for child in reversed(children.get(index, ())))
    # A trie holds what was checked when it came, its siblings apart.
    return TokenTree.trusted(tuple(token_ids), tuple(parents), tuple(log_probs))
