"""The acceptance walk: which drafted tokens the target says itself. Pure; no tensors, no policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paceline.tree import ROOT, TokenTree

ChoiceT = TypeVar("ChoiceT")


@dataclass(frozen=True, slots=True)
class Verdict(Generic[ChoiceT]):
    """
    What a verification emits: the target's choices along the walk.

    ``nodes`` are the accepted nodes in path order. There is one more choice than accepted nodes:
    the last one is the target's own token (recovered or bonus), unless the walk was cut short.
    """

    choices: tuple[ChoiceT, ...]
    nodes: tuple[int, ...]


def walk(
    tree: TokenTree,
    choose: Callable[[int, Sequence[int]], ChoiceT | None],
    token_of: Callable[[ChoiceT], int],
    max_tokens: int,
) -> Verdict[ChoiceT]:
    """
    Walk down the tree for as long as it holds what the target says (sample-and-match).

    ``choose(node, path)`` is the target's choice after ``node``, whose tokens since the root are
    ``path``; it is asked only for rows on the way. ``None`` cuts the walk before that choice.
    At most ``max_tokens`` choices are made.
    """
    choices: list[ChoiceT] = []
    nodes: list[int] = []
    path: list[int] = []
    node: int | None = ROOT
    while node is not None and len(choices) < max_tokens:
        choice = choose(node, path)
        if choice is None:
            break
        choices.append(choice)
        path.append(token_of(choice))
        node = tree.child(node, path[-1])
        if node is not None and len(choices) < max_tokens:
            nodes.append(node)
    return Verdict(tuple(choices), tuple(nodes))
