"""The acceptance walk on its own: against a naive one, its cap, and rows that give no choice."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import ROOT, TokenTree
from verify_service.engine.acceptance import Verdict, walk

NUM_TOKENS = 3


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Return a tree over few tokens."""
    nodes: dict[tuple[int, int], None] = {}
    for _ in range(draw(st.integers(0, 12))):
        nodes[draw(st.integers(0, len(nodes))), draw(st.integers(0, NUM_TOKENS - 1))] = None
    return TokenTree(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))


def _walk(tree: TokenTree, says: Sequence[int | None], max_tokens: int) -> Verdict[int]:
    """Walk with a target whose choice at each depth is given."""
    asked: list[int] = []

    def choose(node: int, path: Sequence[int]) -> int | None:
        assert tree.path(node) == tuple(path)
        asked.append(node)
        return says[len(path)]

    verdict = walk(tree, choose, lambda token_id: token_id, max_tokens)
    assert len(asked) <= max_tokens
    return verdict


@given(
    tree=trees(),
    says=st.lists(st.integers(0, NUM_TOKENS - 1), min_size=14, max_size=14),
    max_tokens=st.integers(1, 14),
)
def test_walk_follows_the_target_for_as_long_as_the_tree_does(
    tree: TokenTree, says: list[int], max_tokens: int
) -> None:
    drafted = {tree.path(node) for node in range(1, tree.num_nodes + 1)}
    depth = 0
    while tuple(says[: depth + 1]) in drafted:
        depth += 1
    num_choices = min(depth + 1, max_tokens)

    verdict = _walk(tree, says, max_tokens)

    assert verdict.choices == tuple(says[:num_choices])
    assert [tree.path(node) for node in verdict.nodes] == [
        tuple(says[:length]) for length in range(1, num_choices)
    ]


def test_empty_tree_is_the_plain_step() -> None:
    assert _walk(TokenTree(), [7], 5) == Verdict((7,), ())


def test_only_draft_is_wrong() -> None:
    """B006, B059: the target's own token, nothing accepted."""
    assert _walk(TokenTree.chain([1]), [2], 5) == Verdict((2,), ())


def test_added_sibling_never_shortens_the_walk() -> None:
    """B050: [[0],[1],[0,0]] accepts no less than [[0],[0,0]]."""
    without, extended = TokenTree((0, 0), (0, 1)), TokenTree((0, 1, 0), (0, 0, 1))

    assert _walk(without, [0, 0, 9], 5).choices == _walk(extended, [0, 0, 9], 5).choices


def test_row_without_a_choice_cuts_the_walk_before_it() -> None:
    """B057: what was chosen before stays."""
    tree = TokenTree.chain([4, 5, 6])

    assert _walk(tree, [4, 5, None], 9) == Verdict((4, 5), (1, 2))
    assert _walk(tree, [None], 9) == Verdict((), ())


def test_root_is_asked_first() -> None:
    asked: list[int] = []
    walk(TokenTree(), lambda node, path: asked.append(node), lambda _: 0, 3)

    assert asked == [ROOT]
