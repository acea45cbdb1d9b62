"""Hypothesis strategies for token trees."""

from __future__ import annotations

import math

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
