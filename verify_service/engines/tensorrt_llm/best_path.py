"""
The chain to verify out of a trie: the path with the most expected accepted tokens.

``value(v) = p(v) * (1 + max over children)``, with p given the parent and over the depth that is
left; the likeliest child at every level alone would follow a good first token into a dead end.
"""

from __future__ import annotations

import math

from verify_service.engine.draft_trie import TrieNode


def best_path(root: TrieNode, max_len: int) -> list[int]:
    """Return the token ids of the best path below ``root``, at most ``max_len`` of them."""
    return _below(root, max_len)[1]


def _below(node: TrieNode, depth_left: int) -> tuple[float, list[int]]:
    """Return the expected accepted tokens below a node, and the path that brings them."""
    best, path = 0.0, list[int]()
    if depth_left <= 0:
        return best, path
    for child in node.children.values():
        value, following = _below(child, depth_left - 1)
        value = math.exp(child.log_prob) * (1.0 + value)
        if value > best:
            best, path = value, [child.token_id, *following]
    return best, path
