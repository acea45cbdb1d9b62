"""The simulated drafter: honest or not, as good as its workload says, the same every time."""

from __future__ import annotations

import math

import pytest

from bench import simulated_drafter
from bench.simulated_drafter import WORKLOADS, SimulatedDrafter, TreeShape
from paceline.tree import ROOT, TokenTree
from verify_service.targets.simulated import TokenStream

STREAM = TokenStream()
CHAIN_SHAPE = TreeShape(max_nodes=7, max_depth=7, min_survival=1e-9)


def _replay(
    drafter: SimulatedDrafter, workload: str, num_steps: int
) -> tuple[float, list[tuple[float, bool]]]:
    """Return tokens per step, and of each node on the way its estimate and whether it hit."""
    outcomes: list[tuple[float, bool]] = []
    committed, sequence_id = [7], 0
    for _ in range(num_steps):
        tree = drafter.propose(WORKLOADS[workload], sequence_id, committed)
        node: int | None = ROOT
        while node is not None:
            true = STREAM.after(committed[-1], len(committed) - 1)
            outcomes.extend(_judged(tree, node, true))
            committed.append(true)
            node = tree.child(node, true)
    return (len(committed) - 1) / num_steps, outcomes


def _judged(tree: TokenTree, node: int, true: int) -> list[tuple[float, bool]]:
    return [
        (math.exp(tree.log_probs[child - 1]), tree.token_ids[child - 1] == true)
        for child in range(1, tree.num_nodes + 1)
        if tree.parents[child - 1] == node
    ]


@pytest.mark.parametrize(("workload", "length"), [("chat", 2.7), ("code", 4.3), ("edit", 5.7)])
def test_chains_accept_as_the_literature_says(
    workload: str, length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_drafter, "SIBLING_SHARES", (0.0, 0.0))

    reached, _ = _replay(SimulatedDrafter(STREAM, shape=CHAIN_SHAPE), workload, 800)

    assert reached == pytest.approx(length, rel=0.08)


def test_trees_accept_more_than_chains_and_edits_more_than_chat() -> None:
    drafter = SimulatedDrafter(STREAM)

    lengths = [_replay(drafter, workload, 300)[0] for workload in ("chat", "code", "edit")]

    assert 3.2 < lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize(("overconfidence", "is_honest"), [(1.0, True), (3.0, False)])
def test_estimates_are_honest_unless_made_overconfident(
    overconfidence: float, is_honest: bool
) -> None:
    drafter = SimulatedDrafter(STREAM, overconfidence=overconfidence)

    _, outcomes = _replay(drafter, "chat", 600)

    stated = sum(estimate for estimate, _ in outcomes) / len(outcomes)
    observed = sum(hit for _, hit in outcomes) / len(outcomes)
    assert (abs(stated - observed) < 0.03) is is_honest


def test_trees_are_the_same_every_time_and_differ_by_sequence() -> None:
    first = SimulatedDrafter(STREAM).propose(WORKLOADS["code"], 1, [3, 4])

    assert SimulatedDrafter(STREAM).propose(WORKLOADS["code"], 1, [3, 4]) == first
    assert SimulatedDrafter(STREAM).propose(WORKLOADS["code"], 2, [3, 4]) != first
    assert SimulatedDrafter(STREAM, seed=1).propose(WORKLOADS["code"], 1, [3, 4]) != first
    assert 0 < first.num_nodes <= TreeShape().max_nodes
