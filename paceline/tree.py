"""The token tree: what a drafter proposes. Not what is done with it (see ``verify_service``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import InvalidTree

ROOT = 0
"""The node that stands for the committed tokens; it carries no token."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """
    A tree of candidate continuations of the committed tokens.

    Node ``i`` (1-based) carries ``token_ids[i - 1]`` and continues node ``parents[i - 1]``.
    Parents come before children and siblings carry distinct tokens. ``log_probs`` is empty or
    holds each node's log-probability given its parent. The empty tree is legal.

    Raises ``InvalidTree`` when the lists do not describe such a tree.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    _children: dict[tuple[int, int], int] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.token_ids):
            raise InvalidTree(
                "length_mismatch", f"{len(self.token_ids)} token_ids, {len(self.parents)} parents"
            )
        if self.log_probs and len(self.log_probs) != len(self.token_ids):
            raise InvalidTree(
                "length_mismatch",
                f"{len(self.token_ids)} token_ids, {len(self.log_probs)} log_probs",
            )
        for node, (token_id, parent) in enumerate(
            zip(self.token_ids, self.parents, strict=True), 1
        ):
            if not 0 <= parent < node:
                raise InvalidTree("forward_parent", f"node {node} has parent {parent}")
            if self._children.setdefault((parent, token_id), node) != node:
                raise InvalidTree("duplicate_sibling", f"node {node} repeats token {token_id}")
        if any(math.isnan(value) or value > 0 for value in self.log_probs):
            raise InvalidTree("log_prob_out_of_range", "a log-probability is above 0 or NaN")

    @classmethod
    def trusted(
        cls,
        token_ids: tuple[int, ...],
        parents: tuple[int, ...],
        log_probs: tuple[float, ...] = (),
    ) -> TokenTree:
        """Return the tree of lists that are known to describe one, unchecked: for own drafts."""
        tree = object.__new__(cls)
        object.__setattr__(tree, "token_ids", token_ids)
        object.__setattr__(tree, "parents", parents)
        object.__setattr__(tree, "log_probs", log_probs)
        object.__setattr__(tree, "_children", {})
        return tree

    @classmethod
    def chain(cls, token_ids: Sequence[int], log_probs: Sequence[float] = ()) -> TokenTree:
        """Return the tree with a single path."""
        return cls(tuple(token_ids), tuple(range(len(token_ids))), tuple(log_probs))

    @property
    def num_nodes(self) -> int:
        """The number of nodes, the root not counted."""
        return len(self.token_ids)

    def child(self, node: int, token_id: int) -> int | None:
        """Return the child of ``node`` that carries ``token_id``, if there is one."""
        if not self._children:
            keys = zip(self.parents, self.token_ids, strict=True)
            self._children.update((key, number) for number, key in enumerate(keys, 1))
        return self._children.get((node, token_id))

    def children(self, node: int) -> tuple[int, ...]:
        """Return the tokens of the children of ``node``, in node order."""
        pairs = zip(self.token_ids, self.parents, strict=True)
        return tuple(token_id for token_id, parent in pairs if parent == node)

    def num_held(self, token_ids: Sequence[int]) -> int:
        """Return how many of the tokens the tree holds as a path from its root."""
        node = ROOT
        for num_held, token_id in enumerate(token_ids):
            child = self.child(node, token_id)
            if child is None:
                return num_held
            node = child
        return len(token_ids)

    def after(self, token_ids: Sequence[int]) -> TokenTree | None:
        """Return what continues the path of ``token_ids``; None if the tree does not hold it."""
        top = ROOT
        for token_id in token_ids:
            child = self.child(top, token_id)
            if child is None:
                return None
            top = child
        if top == ROOT:
            return self
        numbers = {top: ROOT}
        for node in range(top + 1, self.num_nodes + 1):
            if self.parents[node - 1] in numbers:
                numbers[node] = len(numbers)
        kept = [node - 1 for node in numbers if node != top]
        return TokenTree(
            tuple(self.token_ids[index] for index in kept),
            tuple(numbers[self.parents[index]] for index in kept),
            tuple(self.log_probs[index] for index in kept) if self.log_probs else (),
        )

    def depths(self) -> tuple[int, ...]:
        """Return the depth of each node; children of the root have depth 1."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths[1:])

    def path(self, node: int) -> tuple[int, ...]:
        """Return the token ids from the root's child down to ``node``."""
        token_ids: list[int] = []
        while node != ROOT:
            token_ids.append(self.token_ids[node - 1])
            node = self.parents[node - 1]
        return tuple(reversed(token_ids))

    def check_limits(self, *, max_nodes: int, max_depth: int, vocab_size: int) -> None:
        """Raise ``InvalidTree`` if the tree is larger, deeper or wider in ids than allowed."""
        if self.num_nodes > max_nodes:
            raise InvalidTree("too_many_nodes", f"{self.num_nodes} nodes, at most {max_nodes}")
        if self.token_ids and max(self.token_ids) >= vocab_size:
            raise InvalidTree(
                "token_out_of_range", f"token {max(self.token_ids)}, vocabulary {vocab_size}"
            )
        if self.token_ids and max(self.depths()) > max_depth:
            raise InvalidTree("too_deep", f"depth {max(self.depths())}, at most {max_depth}")
