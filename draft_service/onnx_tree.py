"""
The tree of one session as it grows between commits: which nodes there are, which one pays next.

It knows tokens, estimates and slots, and neither graphs nor texts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from draft_service.drafter import DraftLimits
from draft_service.onnx_choices import Choices
from paceline.tree import TokenTree


@dataclass(slots=True, eq=False)
class DraftNode:
    """A likely token; the root stands for the last committed one."""

    token_id: int
    position: int
    """Of the token within the sequence."""
    log_prob: float = 0.0
    """Given that its parent is right."""
    total: float = 0.0
    """The sum of ``log_prob`` from the root at birth down to this node."""
    parent: DraftNode | None = None
    slot: int | None = None
    """Where its keys and values are; ``None``: the model has not read it."""
    choices: Choices | None = None
    children: dict[int, DraftNode] = field(default_factory=dict)

    def add(self, token_id: int, log_prob: float) -> None:
        """Add a child."""
        self.children[token_id] = DraftNode(
            token_id, self.position + 1, log_prob, self.total + log_prob, self
        )

    def subtree(self) -> Iterator[DraftNode]:
        """Yield the nodes below, parents first."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def branch_slots(self, root: DraftNode) -> list[int]:
        """Return the slots of the nodes between the root and this node, in order."""
        slots: list[int] = []
        above = self.parent
        while above is not None and above is not root:
            if above.slot is not None:
                slots.append(above.slot)
            above = above.parent
        return slots[::-1]


class GrowingTree:
    """The nodes below the committed tokens."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: DraftNode | None = None
        """``None``: the model has not read the last committed token."""

    @property
    def num_read(self) -> int:
        """Nodes that the model has read, the root not counted."""
        return sum(node.slot is not None for node in self._below())

    @property
    def depth(self) -> int:
        """The length of the longest path."""
        root = self.root
        if root is None:
            return 0
        return max((node.position - root.position for node in root.subtree()), default=0)

    def slots(self) -> list[int]:
        """Return the slots that the tree's nodes hold."""
        return [node.slot for node in self._below() if node.slot is not None]

    def advance(self, token_id: int) -> DraftNode | None:
        """
        Make the child that carries a token the root, if the model has read it.

        Its siblings are lost: the caller frees their slots first.
        """
        child = self.root.children.get(token_id) if self.root is not None else None
        if child is None or child.slot is None:
            self.root = None
            return None
        child.parent = None
        self.root = child
        return child

    def frontier(self, max_nodes: int, floor: float, max_depth: int) -> list[DraftNode]:
        """Return the likeliest nodes that the model has not read, the likeliest first."""
        root = self.root
        if root is None:
            return []
        unread = (
            node
            for node in root.subtree()
            if node.slot is None
            and node.total - root.total >= floor
            and node.position - root.position < max_depth
        )
        return heapq.nlargest(max_nodes, unread, key=lambda node: (node.total, -node.position))

    def best(self, limits: DraftLimits, floor: float) -> TokenTree:
        """Return the likeliest nodes within limits; a parent is never less likely than a child."""
        root = self.root
        if root is None or limits.max_tree_depth < 1:
            return TokenTree()
        waiting = [(-child.total, number, 0, child) for number, child in _numbered(root, 0)]
        heapq.heapify(waiting)
        born = len(waiting)
        token_ids: list[int] = []
        parents: list[int] = []
        log_probs: list[float] = []
        while waiting and len(token_ids) < limits.max_draft_tokens:
            negative, _, parent, node = heapq.heappop(waiting)
            if -negative - root.total < floor:
                break
            token_ids.append(node.token_id)
            parents.append(parent)
            log_probs.append(node.log_prob)
            if node.position - root.position < limits.max_tree_depth:
                for number, child in _numbered(node, born):
                    heapq.heappush(waiting, (-child.total, number, len(token_ids), child))
                born += len(node.children)
        return TokenTree(tuple(token_ids), tuple(parents), tuple(log_probs))

    def _below(self) -> Iterator[DraftNode]:
        return self.root.subtree() if self.root is not None else iter(())


def _numbered(node: DraftNode, start: int) -> Iterator[tuple[int, DraftNode]]:
    return enumerate(node.children.values(), start)
