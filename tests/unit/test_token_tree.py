"""The value that drafters send: what is a tree, what is none, and how it is read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidTree
from paceline.tree import ROOT, TokenTree

#       root
#      /    \
#     1:7    2:8
#    /   \     \
#  3:7   4:9   5:7
FORKED = TokenTree((7, 8, 7, 9, 7), (0, 0, 1, 1, 2))


def test_empty_tree_is_legal() -> None:
    tree = TokenTree()

    assert tree.num_nodes == 0
    assert tree.depths() == ()
    assert tree.child(ROOT, 0) is None
    tree.check_limits(max_nodes=0, max_depth=0, vocab_size=0)


def test_children_are_found_by_parent_and_token() -> None:
    assert FORKED.child(ROOT, 7) == 1
    assert FORKED.child(1, 9) == 4
    assert FORKED.child(2, 7) == 5
    assert FORKED.child(2, 9) is None
    assert FORKED.child(5, 7) is None


def test_depths_and_paths_follow_parents() -> None:
    assert FORKED.depths() == (1, 1, 2, 2, 2)
    assert FORKED.path(ROOT) == ()
    assert FORKED.path(4) == (7, 9)
    assert FORKED.path(5) == (8, 7)


def test_chain_is_a_single_path() -> None:
    tree = TokenTree.chain([5, 5, 6], [-0.1, -0.2, -0.3])

    assert tree.parents == (0, 1, 2)
    assert tree.path(3) == (5, 5, 6)
    assert tree.log_probs == (-0.1, -0.2, -0.3)


@pytest.mark.parametrize(
    ("token_ids", "parents", "log_probs", "cause"),
    [
        pytest.param((1,), (), (), "length_mismatch", id="parents missing"),
        pytest.param((1, 2), (0, 1), (-1.0,), "length_mismatch", id="log-probs missing"),
        pytest.param((1,), (1,), (), "forward_parent", id="own parent"),
        pytest.param((1, 2), (2, 0), (), "forward_parent", id="later parent"),
        pytest.param((1,), (-1,), (), "forward_parent", id="negative parent"),
        pytest.param((1, 1), (0, 0), (), "duplicate_sibling", id="twins"),
        pytest.param((1,), (0,), (0.1,), "log_prob_out_of_range", id="probability above 1"),
        pytest.param((1,), (0,), (math.nan,), "log_prob_out_of_range", id="NaN"),
        pytest.param((1,), (0,), (math.inf,), "log_prob_out_of_range", id="infinity"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_cause(
    token_ids: tuple[int, ...], parents: tuple[int, ...], log_probs: tuple[float, ...], cause: str
) -> None:
    """B074: forward and self parents, equal siblings and broken numbers have names of their own."""
    with pytest.raises(InvalidTree) as caught:
        TokenTree(token_ids, parents, log_probs)

    assert caught.value.cause == cause
    assert caught.value.field == "tree"


def test_impossible_node_is_legal() -> None:
    assert TokenTree((1,), (0,), (-math.inf,)).num_nodes == 1


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        pytest.param({"max_nodes": 4}, "too_many_nodes", id="nodes"),
        pytest.param({"max_depth": 1}, "too_deep", id="depth"),
        pytest.param({"vocab_size": 9}, "token_out_of_range", id="token"),
    ],
)
def test_tree_beyond_a_limit_is_refused(limits: dict[str, int], cause: str) -> None:
    fitting = {"max_nodes": 5, "max_depth": 2, "vocab_size": 10}
    FORKED.check_limits(**fitting)

    with pytest.raises(InvalidTree) as caught:
        FORKED.check_limits(**(fitting | limits))

    assert caught.value.cause == cause


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 12)), max_size=12))
def test_every_tree_that_is_accepted_keeps_the_invariants(nodes: list[tuple[int, int]]) -> None:
    token_ids = tuple(token_id for token_id, _ in nodes)
    parents = tuple(parent for _, parent in nodes)
    try:
        tree = TokenTree(token_ids, parents)
    except InvalidTree:
        return

    paths = [tree.path(node) for node in range(1, tree.num_nodes + 1)]
    assert [len(path) for path in paths] == list(tree.depths())
    assert len(set(paths)) == len(paths)
    assert all(
        tree.child(parent, token_id) == node
        for node, (token_id, parent) in enumerate(nodes, start=1)
    )
