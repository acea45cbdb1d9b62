"""What a drafter drew the children of one node from. Values only; no rule, no transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.tree import TokenTree


@dataclass(frozen=True, slots=True)
class DrawnChildren:
    """The children of one node, drawn one after another without replacement."""

    token_ids: tuple[int, ...]
    """In the order of the draws."""
    draft_probs: Mapping[int, float]
    """The distribution of the first draw: at least 0, of sum 1; ids not named have none."""


def drawn_children(tree: TokenTree, node: int, draft_probs: Mapping[int, float]) -> DrawnChildren:
    """Return the children of ``node`` as draws from ``draft_probs``, which may have any sum."""
    total = sum(draft_probs.values())
    shares = {token_id: prob / total for token_id, prob in draft_probs.items() if prob > 0}
    return DrawnChildren(tree.children(node), shares)
