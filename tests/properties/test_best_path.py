"""The chain out of a trie is the one with the most expected accepted tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import TokenTree
from tests.doubles.token_trees import token_trees
from verify_service.engine.draft_trie import DraftTrie, TrieNode
from verify_service.engines.tensorrt_llm.best_path import best_path


def expected_accepted(root: TrieNode, path: list[int]) -> float:
    """Sum over the path's nodes of the probability that all down to it are accepted."""
    total, survival, node = 0.0, 1.0, root
    for token_id in path:
        node = node.children[token_id]
        survival *= math.exp(node.log_prob)
        total += survival
    return total


@given(tree=token_trees(max_nodes=14), limit=st.integers(0, 6))
def test_no_path_of_the_trie_is_expected_to_be_accepted_further(
    tree: TokenTree, limit: int
) -> None:
    trie = DraftTrie()
    trie.merge(0, tree, [])

    chosen = best_path(trie.root, limit)

    best = max(
        (expected_accepted(trie.root, list(path)) for path in trie.paths() if len(path) <= limit),
        default=0.0,
    )
    assert len(chosen) <= limit
    assert expected_accepted(trie.root, chosen) == pytest.approx(best)
