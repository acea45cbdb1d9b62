"""Hypothesis strategies for token trees, and what holds of all trees that drafters send."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

from hypothesis import strategies as st

from paceline.tree import TokenTree


@st.composite
def token_trees(draw: st.DrawFn, max_nodes: int = 10) -> TokenTree:
    """Return a tree over few tokens whose siblings' probabilities sum to at most one."""
    token_ids: list[int] = []
    parents: list[int] = []
    log_probs: list[float] = []
    left: dict[int, float] = {0: 1.0}
    seen: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(min_value=0, max_value=max_nodes))):
        parent = draw(st.integers(min_value=0, max_value=len(token_ids)))
        token_id = draw(st.integers(min_value=0, max_value=5))
        if (parent, token_id) in seen:
            continue
        share = draw(st.floats(min_value=0.05, max_value=0.95)) * left[parent]
        seen.add((parent, token_id))
        left[parent] -= share
        token_ids.append(token_id)
        parents.append(parent)
        log_probs.append(math.log(share))
        left[len(token_ids)] = 1.0
    return TokenTree(tuple(token_ids), tuple(parents), tuple(log_probs))


def sibling_sums(tree: TokenTree) -> dict[int, float]:
    """Return the sum of the children's probabilities for each node."""
    sums: dict[int, float] = defaultdict(float)
    for parent, log_prob in zip(tree.parents, tree.log_probs, strict=True):
        sums[parent] += math.exp(log_prob)
    return sums


def paths_are_ordered(tree: TokenTree) -> bool:
    """Return whether likelier nodes come first, by the probability of their paths."""
    costs = [0.0]
    for parent, log_prob in zip(tree.parents, tree.log_probs, strict=True):
        costs.append(costs[parent] - log_prob)
    return all(first <= second + 1e-9 for first, second in pairwise(costs))
