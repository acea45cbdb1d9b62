"""How many nodes a sequence may offer to the budget, by what it got before."""

from __future__ import annotations

import pytest

from paceline.tree import TokenTree
from verify_service.engine.block_manager import BlockManager
from verify_service.engine.cost_table import CostTable
from verify_service.engine.draft_selection import (
    OFFER_GROWTH,
    OFFER_MARGIN,
    BudgetMode,
    select,
)
from verify_service.engine.sampling import TokenLimits
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Drafting, Request, Sequence

CHAIN = TokenTree.chain(tuple(range(1, 41)), (-0.05,) * 40)
FREE, DEAR = 0.0, 1000.0
"""What a row costs beside a step of 1."""


def _sequence() -> Sequence:
    request = Request(1, (7, 8), limits=TokenLimits(200))
    sequence = Sequence(request, Drafting("pool"), 0.0, 256)
    sequence.has_emitted = True
    return sequence


def _num_nodes(sequence: Sequence, row_cost: float, tree: TokenTree = CHAIN) -> int:
    """Offer a tree afresh and return how many of its nodes are verified."""
    costs = CostTable(64)
    for rows in range(1, 65):
        costs.record(rows, 1, 1.0 + row_cost * rows)
    sequence.trie.clear()
    sequence.trie.merge(len(sequence.token_ids), tree, sequence.token_ids)
    turn = Turn(sequence, 1, is_decode=True)
    (selected,) = select(
        [turn], costs, BlockManager(32, 16), lambda _: (BudgetMode.ADAPTIVE, 40), 1000
    )
    return selected.tree.num_nodes


def test_who_got_little_offers_little_and_grows_again() -> None:
    sequence = _sequence()

    taken = [_num_nodes(sequence, cost) for cost in (FREE, DEAR, FREE, FREE, FREE)]

    assert taken[:2] == [40, 0]
    assert taken[2] == OFFER_MARGIN
    assert taken[3] == OFFER_GROWTH * taken[2] + OFFER_MARGIN
    assert taken[4] == 40


@pytest.mark.parametrize("size", [1, 3])
def test_small_tree_that_was_taken_whole_holds_nobody_back(size: int) -> None:
    """A late or short tree says nothing about what the next one is worth."""
    sequence = _sequence()
    short = TokenTree.chain(tuple(range(size)), (-0.05,) * size)

    taken = [_num_nodes(sequence, FREE, tree) for tree in (CHAIN, short, CHAIN)]

    assert taken == [40, size, 40]
