"""
Bar of issue 3: what deciding the budget costs with 512 sequences of 16 nodes each.

    python -m bench.budget

The decision ranks the survivals of all offered nodes and cuts them. Finding each sequence's
likeliest nodes in its trie comes before it, building the trees after; both are shown beside it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from bench.bar import Bar
from paceline.cli.terminal import say
from paceline.tree import TokenTree
from verify_service.engine.calibration import PoolCalibration, SequenceCalibration
from verify_service.engine.cost_table import CostTable
from verify_service.engine.draft_budget import Candidate, candidates, cut, tree_of
from verify_service.engine.draft_trie import DraftTrie

NUM_SEQUENCES: Final = 512
NUM_NODES: Final = 16
REPETITIONS: Final = 400


async def measure() -> list[Bar]:
    """Return the median of many decisions."""
    rng = random.Random(3)
    tries = [_trie(rng) for _ in range(NUM_SEQUENCES)]
    rates = [SequenceCalibration(PoolCalibration()).rate for _ in tries]

    def offer_all() -> list[list[Candidate]]:
        return [
            candidates(trie, rate, max_nodes=NUM_NODES, max_depth=NUM_NODES)
            for trie, rate in zip(tries, rates, strict=True)
        ]

    offers = offer_all()
    ends = np.cumsum([len(offer) for offer in offers])
    survivals = np.array([candidate.survival for offer in offers for candidate in offer])
    costs = _costs(NUM_SEQUENCES * (1 + NUM_NODES))
    curve = costs.curve(0)
    counts = cut(survivals, ends, curve, NUM_SEQUENCES).counts.tolist()

    def plant_all() -> list[TokenTree]:
        return [tree_of(offer[:count]) for offer, count in zip(offers, counts, strict=True)]

    def learn_cost() -> float:
        costs.record(NUM_SEQUENCES, 0, 0.02)
        return costs.seconds(NUM_SEQUENCES, 0)

    decision = _median(lambda: cut(survivals, ends, curve, NUM_SEQUENCES))
    say(
        f"{len(survivals)} nodes offered, {sum(counts)} kept; decision {decision:.0f} us; "
        f"candidates of all tries {_median(offer_all, 10):.0f} us, "
        f"trees {_median(plant_all, 10):.0f} us, cost table {_median(learn_cost, 50):.0f} us"
    )
    name = f"us of CPU per decision, {NUM_SEQUENCES} sequences x {NUM_NODES} nodes"
    return [Bar(3, name, decision, 100.0, "at most")]


def _trie(rng: random.Random) -> DraftTrie:
    trie = DraftTrie()
    parents = tuple(rng.randrange(max(0, node - 3), node + 1) for node in range(NUM_NODES))
    log_probs = tuple(-(rng.random() ** 2) for _ in range(NUM_NODES))
    trie.merge(0, TokenTree(tuple(range(NUM_NODES)), parents, log_probs), [])
    return trie


def _costs(max_rows: int) -> CostTable:
    costs = CostTable(max_rows)
    for rows in range(1, max_rows, 64):
        costs.record(rows, 0, 0.015 + max(0.0, rows - 200) * 60e-6)
    return costs


def _median(function: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    durations = []
    for _ in range(repetitions):
        begun = time.thread_time_ns()
        function()
        durations.append(1e-9 * (time.thread_time_ns() - begun))
    return 1e6 * statistics.median(durations)


def main() -> None:
    """Print the figures."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.0f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
