"""Trees that grow between commits, against a plain list of paths."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.drafter import DraftLimits
from draft_service.onnx_choices import Sharpness, best_choices
from draft_service.onnx_tree import DraftNode, GrowingTree
from paceline.noise import gumbel_noise

FLOOR = math.log(0.02)


@st.composite
def growing_trees(draw: st.DrawFn) -> GrowingTree:
    """A tree as passes would leave it: some nodes read, their children below them."""
    tree = GrowingTree()
    tree.root = DraftNode(0, 10)
    read = [tree.root]
    for slot in range(draw(st.integers(0, 12))):
        node = draw(st.sampled_from(read))
        if not node.children:
            for token_id in draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)):
                node.add(token_id, -draw(st.integers(0, 512)) / 256)
        child = draw(st.sampled_from(list(node.children.values())))
        if child.slot is None:
            child.slot = slot
            read.append(child)
    return tree


def paths(tree: GrowingTree) -> dict[tuple[int, ...], float]:
    """Return all paths with the sums of their log-probabilities."""
    assert tree.root is not None
    found: dict[tuple[int, ...], float] = {}
    stack: list[tuple[tuple[int, ...], float, DraftNode]] = [((), 0.0, tree.root)]
    while stack:
        path, total, node = stack.pop()
        for child in node.children.values():
            below = ((*path, child.token_id), total + child.log_prob, child)
            found[below[0]] = below[1]
            stack.append(below)
    return found


@given(growing_trees(), st.integers(1, 12), st.integers(1, 5))
def test_the_sent_tree_holds_the_likeliest_paths(
    tree: GrowingTree, max_nodes: int, max_depth: int
) -> None:
    sent = tree.best(DraftLimits(max_nodes, max_depth), FLOOR)

    allowed = {
        path: total
        for path, total in paths(tree).items()
        if len(path) <= max_depth and total >= FLOOR
    }
    chosen = [allowed[sent.path(node)] for node in range(1, sent.num_nodes + 1)]
    assert chosen == sorted(allowed.values(), reverse=True)[:max_nodes]


@given(growing_trees(), st.integers(0, 6))
def test_advancing_keeps_the_subtree_of_a_token_that_was_read(
    tree: GrowingTree, token_id: int
) -> None:
    assert tree.root is not None
    child = tree.root.children.get(token_id)
    is_read = child is not None and child.slot is not None
    below = {path[1:]: total for path, total in paths(tree).items() if path[0] == token_id}

    kept = tree.advance(token_id)

    assert (kept is not None) == is_read
    if kept is not None and child is not None:
        ours = {path: total + child.log_prob for path, total in paths(tree).items()}
        assert ours == {path: total for path, total in below.items() if path}


@given(growing_trees(), st.integers(1, 4), st.integers(1, 5))
def test_the_frontier_is_the_likeliest_unread(
    tree: GrowingTree, max_nodes: int, max_depth: int
) -> None:
    assert tree.root is not None
    unread = [
        node.total
        for node in tree.root.subtree()
        if node.slot is None and node.total >= FLOOR and node.position - 10 < max_depth
    ]

    found = tree.frontier(max_nodes, FLOOR, max_depth)

    assert [node.total for node in found] == sorted(unread, reverse=True)[:max_nodes]


@given(st.integers(0, 2**64 - 1), st.floats(0.3, 2.0), st.integers(1, 60))
def test_the_first_choice_is_the_argmax_of_logits_and_noise(
    seed: int, temperature: float, num_tokens: int
) -> None:
    ids = np.arange(num_tokens, dtype=np.int64) * 3 + 5
    logits = np.random.default_rng(seed).normal(size=num_tokens) * 4
    scores = logits / temperature + gumbel_noise(seed, 12, ids)

    choices = best_choices(scores, ids)

    assert choices is not None
    assert choices.token_ids[0] == ids[scores.argmax()]
    assert (np.diff(choices.gaps) <= 0).all()


@settings(max_examples=6)
@given(st.floats(0.4, 6.0), st.integers(0, 2**32 - 1))
def test_sharpness_learns_how_sure_choices_are(sharpness: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    learner = Sharpness(has_noise=False)
    errors = []
    for _ in range(300):
        choices = best_choices(rng.normal(size=12), np.arange(12))
        assert choices is not None
        shares = np.exp(choices.gaps * sharpness)
        shares /= shares.sum()
        errors.append(abs(math.exp(learner.log_probs(choices)[0]) - shares[0]))
        learner.learn(choices, int(rng.choice(choices.token_ids, p=shares)))

    assert np.mean(errors[150:]) < 0.12


def test_logits_that_are_no_numbers_give_no_choices() -> None:
    """B057: a broken pass proposes nothing."""
    assert best_choices(np.array([1.0, math.nan, 2.0]), np.arange(3)) is None
