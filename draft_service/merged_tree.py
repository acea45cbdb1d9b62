"""One tree from the trees of several drafters, the likeliest node first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from draft_service.drafter import DraftLimits
from draft_service.mixing import Estimate, Mixer, Opinion
from paceline.tree import ROOT, TokenTree

_UNKNOWN_PROBABILITY = 0.5
"""Assumed for nodes of drafters that give no estimates."""

_Places: TypeAlias = tuple[int | None, ...]
"""The node at which each drafter's tree stands; None where it has ended."""


@dataclass(frozen=True, slots=True)
class MergedTree:
    """The merged tree, and the estimates of the children of each of its nodes."""

    tree: TokenTree
    estimates: dict[int, list[Estimate]]

    def teach(self, committed_token_ids: Sequence[int], mixer: Mixer) -> int:
        """Teach the mixer along committed tokens; return how many of them the tree holds."""
        node = ROOT
        for num_held, token_id in enumerate(committed_token_ids):
            mixer.learn(self.estimates.get(node, ()), token_id)
            child = self.tree.child(node, token_id)
            if child is None:
                return num_held
            node = child
        return len(committed_token_ids)


class _Candidate(NamedTuple):
    """A node that may join the tree; the likeliest sorts first, of equals the earliest."""

    cost: float
    serial: int
    parent: int
    depth: int
    token_id: int
    log_prob: float
    places: _Places


class _Source:
    """One drafter's tree, its children by node."""

    def __init__(self, tree: TokenTree) -> None:
        said: dict[int, dict[int, float]] = {}
        self.tree = tree
        for parent, token_id, log_prob in zip(
            tree.parents, tree.token_ids, tree.log_probs, strict=True
        ):
            said.setdefault(parent, {})[token_id] = math.exp(log_prob)
        self._opinions = {node: Opinion(children) for node, children in said.items()}

    def opinion(self, node: int | None) -> Opinion:
        """Return what the tree says at one of its nodes."""
        return _SILENCE if node is None else self._opinions.get(node, _SILENCE)

    def child(self, node: int | None, token_id: int) -> int | None:
        """Return the child that carries a token."""
        return None if node is None else self.tree.child(node, token_id)


_SILENCE = Opinion({})


class _Merging:
    """Grows one merged tree."""

    def __init__(
        self, sources: Sequence[_Source], mixer: Mixer, limits: DraftLimits, max_cost: float
    ) -> None:
        self._sources = sources
        self._mixer = mixer
        self._limits = limits
        self._max_cost = max_cost
        self._heap: list[_Candidate] = []
        self._serial = 0
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._log_probs: list[float] = []
        self._estimates: dict[int, list[Estimate]] = {}

    def grow(self) -> MergedTree:
        """Take the likeliest nodes until a limit is reached."""
        self._expand(ROOT, 0, 0.0, (ROOT,) * len(self._sources))
        while self._heap and len(self._token_ids) < self._limits.max_draft_tokens:
            best = heappop(self._heap)
            self._token_ids.append(best.token_id)
            self._parents.append(best.parent)
            self._log_probs.append(best.log_prob)
            self._expand(len(self._token_ids), best.depth, best.cost, best.places)
        tree = TokenTree(tuple(self._token_ids), tuple(self._parents), tuple(self._log_probs))
        return MergedTree(tree, self._estimates)

    def _expand(self, node: int, depth: int, cost: float, places: _Places) -> None:
        if depth >= self._limits.max_tree_depth:
            return
        opinions = [
            source.opinion(place) for source, place in zip(self._sources, places, strict=True)
        ]
        estimates = self._mixer.mix(opinions)
        self._estimates[node] = estimates
        for estimate in estimates:
            log_prob = math.log(estimate.probability)
            if cost - log_prob > self._max_cost:
                continue
            self._serial += 1
            below = tuple(
                source.child(place, estimate.token_id)
                for source, place in zip(self._sources, places, strict=True)
            )
            candidate = _Candidate(
                cost - log_prob, self._serial, node, depth + 1, estimate.token_id, log_prob, below
            )
            heappush(self._heap, candidate)


def with_estimates(tree: TokenTree) -> TokenTree:
    """Return the tree with a probability for each node, a guess where its drafter gave none."""
    if tree.log_probs:
        return tree
    guesses = (math.log(_UNKNOWN_PROBABILITY),) * tree.num_nodes
    return TokenTree(tree.token_ids, tree.parents, guesses)


def merge_trees(
    trees: Sequence[TokenTree], mixer: Mixer, limits: DraftLimits, min_probability: float
) -> MergedTree:
    """
    Return one tree of the nodes of all ``trees`` whose paths are the likeliest.

    All nodes have estimates (see ``with_estimates``). Paths less likely than ``min_probability``
    are left out.
    """
    sources = [_Source(tree) for tree in trees]
    return _Merging(sources, mixer, limits, -math.log(min_probability)).grow()
