"""Draft distributions off the wire: checked, or dropped and counted; the tree is not lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.tree import TokenTree
from paceline.v1 import types_pb2
from verify_service.engine.drawn_children import DrawnChildren, drawn_children

MAX_PROBS = 65_536
"""Probabilities in one tree, over all its nodes; further nodes count as chosen, not drawn."""
MAX_SUM_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class Distributions:
    """What one tree's message says of how its children were drawn."""

    by_node: Mapping[int, DrawnChildren] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many distributions were dropped, by cause."""


def distributions_from_proto(
    message: types_pb2.TokenTree, tree: TokenTree, num_token_ids: int
) -> Distributions:
    """
    Return the distributions of a message that are one.

    Whether one is dropped depends on the distribution and never on what was drawn from it, so that
    dropping is not a choice among draws: its children are then tried as guesses, which is exact.
    """
    by_node: dict[int, DrawnChildren] = {}
    dropped: Counter[str] = Counter()
    room = MAX_PROBS
    for each in message.drawn_children:
        room -= max(len(each.token_ids), len(each.probs))
        cause = "distribution_too_large" if room < 0 else _fault(each, tree, num_token_ids)
        if cause is None and each.parent in by_node:
            cause = "distribution_repeated"
        if cause is not None:
            dropped[cause] += 1
            continue
        probs = dict(zip(each.token_ids, each.probs, strict=True))
        by_node[each.parent] = drawn_children(tree, each.parent, probs)
    return Distributions(by_node, dropped)


def _fault(each: types_pb2.DrawnChildren, tree: TokenTree, num_token_ids: int) -> str | None:
    if each.parent > tree.num_nodes:
        return "distribution_parent"
    if len(each.token_ids) != len(each.probs) or len(set(each.token_ids)) != len(each.token_ids):
        return "distribution_ids"
    if any(token_id >= num_token_ids for token_id in each.token_ids):
        return "distribution_token_out_of_range"
    if not all(math.isfinite(prob) and prob >= 0 for prob in each.probs):
        return "distribution_probability"
    if abs(math.fsum(each.probs) - 1) > MAX_SUM_ERROR:
        return "distribution_sum"
    return None
