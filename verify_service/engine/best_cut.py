"""
The search of ``draft_budget.cut``, compiled for the CPU.

The best offers' next nodes stand in a tournament; nodes leave it best first, until whatever is left
cannot make the cut any better. A node thus costs as many comparisons as the sequences have binary
digits, and most nodes are never looked at.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline.compiled_code import code_folder, compiled_entry, compiled_part

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Walk = tuple[Reals, Integers, Reals, Integers, Integers, Reals]
"""The tournament, where each offer's next node stands, ``survivals``, ``ends``, the offers of the
nodes taken so far, in order, and the sum of their survivals."""

_entry = partial(
    compiled_entry,
    folder=code_folder([Path(__file__)]),
    signature="UniTuple(f8, 2)(f8[::1], i8[::1], f8[::1], i8, i8, i8[::1])",
)

_ROUNDING: Final = 1.0 + 1e-9
"""Sums of thousands of survivals are exact to far better than this."""


@compiled_part
def _winner(tree: Reals, num_leaves: int) -> int:
    """Return the offer whose next node survives best, the first of equals."""
    place = 1
    while place < num_leaves:
        place = 2 * place + int(tree[2 * place + 1] > tree[2 * place])
    return place - num_leaves


@compiled_part
def _replace(tree: Reals, place: int, survival: float) -> None:
    """Put another survival at a leaf and the largest ones above it."""
    tree[place] = survival
    while place > 1:
        survival = max(survival, tree[place ^ 1])
        place >>= 1
        tree[place] = survival


@compiled_part
def _pop(tree: Reals, places: Integers, survivals: Reals, ends: Integers) -> int:
    """Take the best node out, let the next of its offer in, and return which offer it was."""
    num_leaves = tree.size // 2
    offer = _winner(tree, num_leaves)
    places[offer] += 1
    place = places[offer]
    _replace(tree, num_leaves + offer, survivals[place] if place < ends[offer] else -np.inf)
    return offer


@compiled_part
def _planted(survivals: Reals, ends: Integers, places: Integers) -> Reals:
    """Return the tournament of the offers' first nodes; ``places`` receives where they stand."""
    num_leaves = 1
    while num_leaves < ends.size:
        num_leaves *= 2
    tree = np.full(2 * num_leaves, -np.inf)
    start = 0
    for offer in range(ends.size):
        places[offer] = start
        if start < ends[offer]:
            tree[num_leaves + offer] = survivals[start]
        start = ends[offer]
    for place in range(num_leaves - 1, 0, -1):
        tree[place] = max(tree[2 * place], tree[2 * place + 1])
    return tree


@compiled_part
def _next_rival(
    rival: int,
    count: int,
    expected: float,
    survival: float,
    costs: Reals,
    rate: float,
    level: float,
) -> int:
    """
    Return the first number of nodes from ``rival`` on that might be worth more than ``level``.

    ``count`` nodes bring ``expected`` tokens and no further one survives better than ``survival``.
    As nodes are taken this bound only falls: a number that was ruled out once remains so.
    """
    rival = max(rival, count + 1)
    while rival < costs.size:
        most = (expected + survival * (rival - count)) * _ROUNDING
        if most - rate * costs[rival] >= level:
            break
        rival += 1
    return rival


@compiled_part
def _take(walk: Walk, expected: Reals, count: int) -> int:
    """Take the best node that is left; return how many are taken by now."""
    tree, places, survivals, ends, taken, totals = walk
    totals[0] += tree[1]
    taken[count] = _pop(tree, places, survivals, ends)
    expected[count + 1] = totals[0] + max(ends.size, 1)
    return count + 1


@compiled_part
def _best_alone(walk: Walk, expected: Reals, costs: Reals) -> tuple[int, int]:
    """Return how many nodes bring most tokens per second, and how many were taken to know it."""
    tree = walk[0]
    best, goodput = 0, expected[0] / costs[0]
    count, rival = 0, 1
    while tree[1] > -np.inf:
        rival = _next_rival(rival, count, expected[count], tree[1], costs, goodput, 0.0)
        if rival == costs.size:
            break
        count = _take(walk, expected, count)
        if expected[count] / costs[count] > goodput:
            best, goodput = count, expected[count] / costs[count]
    return best, count


@compiled_part
def _best_beside(walk: Walk, expected: Reals, costs: Reals, rate: float, count: int) -> int:
    """Return how many nodes bring most beyond ``rate`` tokens for each second that they cost."""
    tree = walk[0]
    best, worth = 0, -np.inf
    for number in range(min(count + 1, costs.size)):
        if expected[number] - rate * costs[number] > worth:
            best, worth = number, expected[number] - rate * costs[number]
    rival = 1
    while tree[1] > -np.inf:
        rival = _next_rival(rival, count, expected[count], tree[1], costs, rate, worth)
        if rival >= costs.size:
            break
        count = _take(walk, expected, count)
        if expected[count] - rate * costs[count] > worth:
            best, worth = count, expected[count] - rate * costs[count]
    return best


@_entry
def best_cut(
    survivals: Reals,
    ends: Integers,
    curve: Reals,
    num_fixed_rows: int,
    num_prefill_rows: int,
    counts: Integers,
) -> tuple[float, float]:
    """
    Write how many nodes of each offer are kept; return the expected tokens and the goodput's gain.

    The arguments are those of ``draft_budget.cut``; ``counts``: [num_sequences], zeros.
    """
    num_roots = float(max(ends.size, 1))
    costs = curve[num_fixed_rows : num_fixed_rows + survivals.size + 1]
    if costs.size <= 1:
        return num_roots, 1.0
    places = np.empty(ends.size, np.int64)
    tree = _planted(survivals, ends, places)
    taken = np.empty(costs.size, np.int64)
    walk = (tree, places, survivals, ends, taken, np.zeros(1))
    expected = np.empty(costs.size)
    expected[0] = num_roots
    best, count = _best_alone(walk, expected, costs)
    if num_prefill_rows > 0:
        first = num_fixed_rows + num_prefill_rows
        dearer = curve[first : first + costs.size]
        best = _best_beside(walk, expected, dearer, expected[best] / costs[best], count)
    for index in range(best):
        counts[taken[index]] += 1
    return expected[best], (expected[best] / costs[best]) / (num_roots / costs[0])
