"""
What was sent of each session, and whether commits found their next tree there already.

A commit that stays within a tree that was sent needs no new one: what is below its last token is at
the verifier, or on its way, before the drafter knows of the commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.drafter import Draft
from paceline.tree import ROOT, TokenTree

_MAX_SESSIONS = 8192
"""Sessions followed at once; beyond it the one that was sent to the longest ago is not."""


@dataclass(slots=True)
class _Sent:
    """The newest tree of a session, and the node at which its committed tokens stand."""

    draft: Draft
    committed_len: int
    node: int = ROOT


class SentTrees:
    """The newest tree of each session of one stream."""

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}
        self.counts: Counter[str] = Counter()
        """``hit`` and ``miss``: commits after which something, or nothing, was left of the newest
        tree. ``tokens_ahead``: how deep what was left reached, summed. ``sent`` and ``followed``:
        nodes sent, none twice, and those that commits went along; the rest was in vain."""

    def is_news(self, session_id: int, draft: Draft) -> bool:
        """Return whether a draft says anything that was not sent."""
        sent = self._sent.get(session_id)
        if sent is None:
            return True
        return draft.base_len != sent.draft.base_len or draft.tree != sent.draft.tree

    def send(self, session_id: int, draft: Draft) -> None:
        """Take note of a tree that is about to be sent."""
        before = self._sent.get(session_id)
        num_known = 0
        if before is not None and draft.base_len == before.draft.base_len:
            num_known = before.draft.tree.num_nodes
        elif before is not None and draft.base_len == before.committed_len:
            num_known = _num_below(before.draft.tree, before.node)
        self.counts["sent"] += max(draft.tree.num_nodes - num_known, 0)
        self._sent.pop(session_id, None)
        self._sent[session_id] = _Sent(draft, draft.base_len)
        if len(self._sent) > _MAX_SESSIONS:
            del self._sent[next(iter(self._sent))]

    def commit(self, session_id: int, base_len: int, token_ids: Sequence[int]) -> None:
        """Follow committed tokens through the newest tree; repeated ones are skipped."""
        sent = self._sent.get(session_id)
        fresh = token_ids if sent is None else token_ids[max(sent.committed_len - base_len, 0) :]
        if not fresh:
            return
        tokens_ahead = 0 if sent is None else self._follow(sent, base_len, fresh)
        self.counts["hit" if tokens_ahead else "miss"] += 1
        self.counts["tokens_ahead"] += tokens_ahead
        if not tokens_ahead:
            self._sent.pop(session_id, None)

    def forget(self, session_id: int) -> None:
        """Forget a session."""
        self._sent.pop(session_id, None)

    def _follow(self, sent: _Sent, base_len: int, fresh: Sequence[int]) -> int:
        """Return how deep the tree still reaches below the committed tokens; 0: it ends there."""
        if base_len > sent.committed_len:
            return 0
        for token_id in fresh:
            child = sent.draft.tree.child(sent.node, token_id)
            if child is None:
                return 0
            sent.node = child
            sent.committed_len += 1
            self.counts["followed"] += 1
        return _depth_below(sent.draft.tree, sent.node)


def _depth_below(tree: TokenTree, top: int) -> int:
    depths = {top: 0}
    for node, parent in enumerate(tree.parents[top:], top + 1):
        if parent in depths:
            depths[node] = depths[parent] + 1
    return max(depths.values())


def _num_below(tree: TokenTree, top: int) -> int:
    below = {top}
    for node, parent in enumerate(tree.parents[top:], top + 1):
        if parent in below:
            below.add(node)
    return len(below) - 1
