"""Laws of merged trees, for any members' trees and any limits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafter import DraftLimits
from draft_service.merged_tree import merge_trees
from draft_service.mixing import Mixer
from paceline.tree import TokenTree
from tests.doubles.token_trees import token_trees

TREES = st.lists(token_trees(), min_size=1, max_size=3)
NO_LIMITS = DraftLimits(max_draft_tokens=200, max_tree_depth=64)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """Return the path of each node."""
    return {tree.path(node) for node in range(1, tree.num_nodes + 1)}


@given(trees=TREES)
def test_a_merged_tree_holds_the_paths_of_all_and_no_others(trees: list[TokenTree]) -> None:
    merged = merge_trees(trees, Mixer(), NO_LIMITS, 1e-300).tree

    assert paths(merged) == set().union(*(paths(tree) for tree in trees))


@given(tree=token_trees())
def test_a_tree_merged_with_nothing_is_itself(tree: TokenTree) -> None:
    merged = merge_trees([tree, TokenTree()], Mixer(), NO_LIMITS, 1e-300).tree

    assert paths(merged) == paths(tree)


@given(
    trees=TREES,
    limits=st.builds(
        DraftLimits,
        max_draft_tokens=st.integers(min_value=1, max_value=8),
        max_tree_depth=st.integers(min_value=0, max_value=4),
    ),
)
def test_limits_are_kept_and_likelier_paths_come_first(
    trees: list[TokenTree], limits: DraftLimits
) -> None:
    """B040: no proposal is larger or deeper than allowed."""
    tree = merge_trees(trees, Mixer(), limits, 0.01).tree

    tree.check_limits(
        max_nodes=limits.max_draft_tokens, max_depth=limits.max_tree_depth, vocab_size=10
    )
    costs = [0.0]
    for parent, log_prob in zip(tree.parents, tree.log_probs, strict=True):
        costs.append(costs[parent] - log_prob)
    assert costs == sorted(costs)
    assert all(cost <= -math.log(0.01) for cost in costs)


@given(tree=token_trees(), data=st.data())
def test_what_is_left_after_a_path_continues_it(tree: TokenTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(min_value=0, max_value=tree.num_nodes))
    path = tree.path(node)

    left = tree.after(path)

    assert left is not None
    assert {(*path, *below) for below in paths(left)} == {
        each for each in paths(tree) if each[: len(path)] == path and each != path
    }


@given(tree=token_trees(), path=st.lists(st.integers(min_value=0, max_value=5), max_size=4))
def test_nothing_is_left_after_a_path_that_is_not_there(tree: TokenTree, path: list[int]) -> None:
    is_there = not path or tuple(path) in paths(tree)

    assert (tree.after(path) is not None) == is_there
