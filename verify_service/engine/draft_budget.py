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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.tree import TokenTree
from verify_service.engine.draft_trie import DraftTrie, TrieNode

MIN_SURVIVAL = 0.01
"""Nodes less likely than this are never worth the look."""

_FIRST_LOOK, _LOOK_GROWTH = 640, 4
"""So many of the best nodes are ranked first, and so many times more while that is too few."""
_SAMPLED = 13
"""One survival of so many is in the sample; offers of 16 must not be met at the same place."""
_COUNTS = np.arange(1.0, (1 << 15) + 1)

EMPTY = TokenTree()


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
    num_roots = max(len(ends), 1)
    costs = curve[num_fixed_rows : num_fixed_rows + survivals.size + 1]
    if costs.size <= 1:
        return Cut(np.zeros(len(ends), np.int64), num_roots, 1.0)
    look = _look(survivals, costs, num_roots)
    goodput, expected = look.goodput, look.expected
    count = int(goodput.argmax())
    if num_prefill_rows:
        dearer = curve[num_fixed_rows + num_prefill_rows :][: expected.size]
        worth = expected[: dearer.size] - goodput[count] * dearer
        count = int(worth.argmax()) if worth.size else 0
    kept = look.places[_first_best(survivals[look.places], look.ranked, count)]
    counts = np.searchsorted(kept, ends)
    counts[1:] -= counts[:-1].copy()
    return Cut(
        counts,
        float(expected[count]),
        float(goodput[count] / goodput[0]),
    )


class _Look(NamedTuple):
    """The best nodes, as many as can matter, and what each number of them brings."""

    places: NDArray[np.int64]
    """Where they stand among all, ascending."""
    ranked: NDArray[np.float64]
    expected: NDArray[np.float64]
    goodput: NDArray[np.float64]


def _look(survivals: NDArray[np.float64], costs: NDArray[np.float64], num_roots: int) -> _Look:
    """Rank the best nodes only: most nodes cannot be part of the best cut, and sorting is dear."""
    most, wanted = costs.size - 1, _FIRST_LOOK
    while True:
        places = _promising(survivals, wanted)
        ranked = np.sort(survivals[places])[::-1][:most]
        expected = np.empty(ranked.size + 1)
        expected[0] = 0.0
        np.cumsum(ranked, out=expected[1:])
        expected += num_roots
        goodput = expected / costs[: expected.size]
        is_all = ranked.size == most or places.size == survivals.size
        if is_all or not _may_rise(expected[-1], ranked[-1], goodput.max(), costs, ranked.size):
            return _Look(places, ranked, expected, goodput)
        wanted *= _LOOK_GROWTH


def _promising(survivals: NDArray[np.float64], wanted: int) -> NDArray[np.int64]:
    """Return the places of about ``wanted`` best values: of all above one of a sample."""
    if survivals.size <= 2 * wanted:
        return np.arange(survivals.size)
    sample = np.sort(survivals[::_SAMPLED])
    rank = 1 + wanted * sample.size // survivals.size
    return np.flatnonzero(survivals >= sample[-rank])


def _may_rise(
    expected: float, survival: float, goodput: float, costs: NDArray[np.float64], size: int
) -> bool:
    """Return whether nodes that survive no better than the last one could raise goodput."""
    beyond = costs[size + 1 :]
    left = goodput * beyond
    left -= survival * _counts(beyond.size)
    return bool(left.min(initial=np.inf) < expected)


def _counts(size: int) -> NDArray[np.float64]:
    return _COUNTS[:size] if size <= _COUNTS.size else np.arange(1.0, size + 1)


def _first_best(
    survivals: NDArray[np.float64], ranked: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    """Return the places of the ``count`` largest values, the first of equals, ascending."""
    if count == 0:
        return np.empty(0, np.int64)
    places = np.flatnonzero(survivals >= ranked[count - 1])
    if places.size > count:
        equals = np.flatnonzero(survivals[places] == ranked[count - 1])
        places = np.delete(places, equals[count - places.size :])
    return places


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
