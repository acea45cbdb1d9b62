"""
The verifier's own store of likely continuations of one sequence, merged from any number of facts.

Merging is commutative and idempotent: a node's log-probability is the largest that any fact gave.
The root stands for the committed tokens. The trie knows nothing of KV or rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from paceline.tree import ROOT, TokenTree
from verify_service.engine.drawn_children import DrawnChildren

UNKNOWN_LOG_PROB = -0.6931471805599453
"""Assumed for nodes of drafters that send no estimates: one half."""


class MergeOutcome(Enum):
    """What became of a fact."""

    MERGED = auto()
    STALE = auto()
    """Nothing of it continues the committed tokens any more."""
    AHEAD = auto()
    """It claims a committed length that was never reached."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a committed token told about one drafted node: its raw estimate and whether it hit."""

    log_prob: float
    hit: bool


class TrieNode:
    """One likely token after its parent."""

    __slots__ = ("children", "drawn", "log_prob", "token_id")

    def __init__(self, token_id: int, log_prob: float) -> None:
        self.token_id = token_id
        self.log_prob = log_prob
        self.children: dict[int, TrieNode] = {}
        self.drawn: DrawnChildren | None = None
        """The first draws that any fact told; later ones might be a choice among draws."""

    def count(self) -> int:
        """Return the number of nodes below this one."""
        total, stack = 0, [self]
        while stack:
            node = stack.pop()
            total += len(node.children)
            stack.extend(node.children.values())
        return total


class DraftTrie:
    """Likely continuations of one sequence's committed tokens."""

    def __init__(self, max_nodes: int = 256) -> None:
        self.max_nodes = max_nodes
        self.root = TrieNode(-1, 0.0)
        self.num_nodes = 0

    def merge(
        self,
        base_len: int,
        tree: TokenTree,
        committed: Sequence[int],
        drawn: Mapping[int, DrawnChildren] | None = None,
    ) -> MergeOutcome:
        """
        Add what ``tree``, a fact about committed length ``base_len``, still says.

        The tree is re-rooted along the tokens committed since. Nodes beyond ``max_nodes`` are left
        out. ``drawn`` are the tree's nodes whose children were drawn.
        """
        if base_len > len(committed):
            return MergeOutcome.AHEAD
        start = _rerooted(tree, committed[base_len:])
        if start is None:
            return MergeOutcome.STALE
        placed = {start: self.root}
        for node, (token_id, parent) in enumerate(
            zip(tree.token_ids, tree.parents, strict=True), start=1
        ):
            above = placed.get(parent)
            if above is None or node <= start:
                continue
            log_prob = tree.log_probs[node - 1] if tree.log_probs else UNKNOWN_LOG_PROB
            below = self._place(above, token_id, log_prob)
            if below is not None:
                placed[node] = below
        for node, children in (drawn or {}).items():
            above = placed.get(node)
            if above is not None and above.drawn is None:
                above.drawn = children
        return MergeOutcome.MERGED

    def at(self, path: Sequence[int]) -> TrieNode | None:
        """Return the node that ``path`` leads to from the root, if there is one."""
        node: TrieNode | None = self.root
        for token_id in path:
            if node is None:
                break
            node = node.children.get(token_id)
        return node

    def advance(self, token_ids: Sequence[int]) -> list[Observation]:
        """
        Re-root along newly committed tokens.

        Returns what the tokens told about every child of each node on their way, verified or not.
        """
        observations: list[Observation] = []
        for token_id in token_ids:
            observations.extend(
                Observation(child.log_prob, child.token_id == token_id)
                for child in self.root.children.values()
            )
            child = self.root.children.get(token_id)
            if child is None:
                self.clear()
                break
            self.root = child
        self.num_nodes = self.root.count()
        return observations

    def clear(self) -> None:
        """Forget everything."""
        self.root = TrieNode(-1, 0.0)
        self.num_nodes = 0

    def paths(self) -> Iterator[tuple[int, ...]]:
        """Yield the token ids from the root down to each node; for tests and inspection."""
        stack: list[tuple[TrieNode, tuple[int, ...]]] = [(self.root, ())]
        while stack:
            node, path = stack.pop()
            for child in node.children.values():
                below = (*path, child.token_id)
                yield below
                stack.append((child, below))

    def _place(self, parent: TrieNode, token_id: int, log_prob: float) -> TrieNode | None:
        child = parent.children.get(token_id)
        if child is not None:
            child.log_prob = max(child.log_prob, log_prob)
            return child
        if self.num_nodes >= self.max_nodes:
            return None
        child = TrieNode(token_id, log_prob)
        parent.children[token_id] = child
        self.num_nodes += 1
        return child


def _rerooted(tree: TokenTree, token_ids: Sequence[int]) -> int | None:
    node: int | None = ROOT
    for token_id in token_ids:
        if node is None:
            break
        node = tree.child(node, token_id)
    return node
