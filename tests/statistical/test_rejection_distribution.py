"""The rule REJECTION draws from the target's distribution, jointly, whatever drafts it is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from paceline.noise import mix64
from paceline.tree import ROOT, TokenTree
from verify_service.engine.acceptance import walk
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.drawn_children import DrawnChildren, drawn_children
from verify_service.engine.rejection import LAST_DRAW, Residual, emitted, trial_key, trial_number
from verify_service.engine.sampling import Rule, SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import Submit, TreeFact
from verify_service.targets.table import TableTarget

NUM_DRAWS = 20_000
MAX_DISTANCE = 0.02
MIN_P_VALUE = 0.001

Floats = NDArray[np.float64]

VOCAB = 4
IDS = np.arange(VOCAB)
TRANSITIONS = np.array(
    [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.05, 0.5, 0.45, 0.0]]
)
"""From the last token to the next; the last token never follows itself."""
DRAFT_TRANSITIONS = np.array(
    [[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.0, 0.9, 0.05, 0.05], [0.3, 0.3, 0.3, 0.1]]
)
FIRST_TOKEN = 0
JOINT = (TRANSITIONS[FIRST_TOKEN][:, None] * TRANSITIONS).ravel()
EMPTY = TokenTree()
LOG_ROWS = [[math.log(prob) if prob else -math.inf for prob in row] for row in TRANSITIONS.tolist()]
NONE_DRAWN: Mapping[int, DrawnChildren] = {}


@cache
def _orders(last: int) -> list[tuple[int, ...]]:
    """Return orders of all tokens after ``last`` as an honest drafter draws them."""
    noise = np.random.default_rng(last).gumbel(size=(NUM_DRAWS, VOCAB))
    with np.errstate(divide="ignore"):
        order = np.argsort(-(np.log(DRAFT_TRANSITIONS[last]) + noise), axis=1)
    possible = int((DRAFT_TRANSITIONS[last] > 0).sum())
    return [tuple(row[:possible]) for row in order.tolist()]


@cache
def _tree(firsts: tuple[int, ...], seconds: tuple[int, ...] = ()) -> TokenTree:
    """Return children of the root and children of the first of them."""
    return TokenTree((*firsts, *seconds), (0,) * len(firsts) + (1,) * len(seconds))


@cache
def _drawn(tree: TokenTree, node: int) -> DrawnChildren:
    last = tree.token_ids[node - 1] if node else FIRST_TOKEN
    return drawn_children(tree, node, dict(enumerate(DRAFT_TRANSITIONS[last])))


def _drawn_tree(index: int, width: int) -> tuple[TokenTree, dict[int, DrawnChildren]]:
    """Return ``width`` children drawn without replacement, and as many below the first."""
    firsts = _orders(FIRST_TOKEN)[index][:width]
    # The seconds' noise must be another than that of the firsts when both follow one token.
    seconds = _orders(firsts[0])[(index + NUM_DRAWS // 2) % NUM_DRAWS][:width]
    tree = _tree(firsts, seconds)
    return tree, {ROOT: _drawn(tree, ROOT), 1: _drawn(tree, 1)}


class Source:
    """Draws pairs of tokens, each with numbers of its own seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed << 32
        self.num_accepted = 0

    def pair(
        self, tree: TokenTree = EMPTY, drawn: Mapping[int, DrawnChildren] = NONE_DRAWN
    ) -> tuple[int, int]:
        """Return two tokens after the first; what a tree does not reach is drawn without one."""
        self._seed += 1
        key = trial_key(mix64(self._seed), 0)

        def choose(node: int, path: Sequence[int]) -> int:
            last = path[-1] if path else FIRST_TOKEN
            return _emitted(last, drawn.get(node), tree.children(node), key, 1 + len(path))

        verdict = walk(tree, choose, int, max_tokens=2)
        self.num_accepted += len(verdict.nodes)
        first, *more = verdict.choices
        return first, more[0] if more else _emitted(first, None, (), key, 2)


def _emitted(
    last: int, drawn: DrawnChildren | None, guesses: Sequence[int], key: int, position: int
) -> int:
    residual = Residual(IDS, TRANSITIONS[last].copy())
    return emitted(residual, drawn, guesses, lambda trial: trial_number(key, position, trial))


def _cells(pairs: Sequence[tuple[int, int]]) -> Floats:
    cells = [VOCAB * one + other for one, other in pairs]
    return np.bincount(cells, minlength=VOCAB**2).astype(np.float64)


def _is_plausible(pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether pairs look drawn from the joint distribution, and never from outside of it."""
    seen, inside = _cells(pairs), JOINT > 0
    p_value = stats.chisquare(seen[inside], JOINT[inside] * seen.sum()).pvalue
    return bool(not seen[~inside].any() and p_value > MIN_P_VALUE)


def _fits(pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether many pairs do, and are as close to it as is promised."""
    assert len(pairs) >= NUM_DRAWS
    seen = _cells(pairs)
    distance = np.abs(seen / seen.sum() - JOINT).sum() / 2
    return _is_plausible(pairs) and bool(distance < MAX_DISTANCE)


def test_without_drafts_tokens_have_the_targets_distribution() -> None:
    source = Source(2)

    assert _is_plausible([source.pair() for _ in range(NUM_DRAWS // 2)])


def _chosen_pairs(width: int, num_draws: int) -> list[tuple[int, int]]:
    source = Source(10 + width)
    best, worst = tuple(range(width)), tuple(range(VOCAB - 1, VOCAB - 1 - width, -1))
    trees = [_tree(best, best), _tree(worst, worst)]
    pairs = [source.pair(trees[index % 2]) for index in range(num_draws)]
    first = TRANSITIONS[FIRST_TOKEN]
    least = (first[list(best)].sum() + first[list(worst)].sum()) / 2
    assert source.num_accepted / num_draws > least - 0.02
    return pairs


def _drawn_pairs(width: int, num_draws: int) -> list[tuple[int, int]]:
    source = Source(20 + width)
    return [source.pair(*_drawn_tree(index, width)) for index in range(num_draws)]


WIDTHS = (1, 2, 3, 4)
KINDS = {"chosen": _chosen_pairs, "drawn": _drawn_pairs}


@pytest.mark.parametrize("kind", KINDS)
def test_siblings_leave_the_joint_distribution_alone(kind: str) -> None:
    """
    B013, B014, B018: one to four siblings at both positions; chosen ones likeliest first and last,
    drawn ones recursively without replacement.
    """
    by_width = [KINDS[kind](width, NUM_DRAWS // len(WIDTHS)) for width in WIDTHS]

    assert all(_is_plausible(pairs) for pairs in by_width)
    assert _fits([pair for pairs in by_width for pair in pairs])


@pytest.mark.statistical_long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_siblings_of_one_width_leave_the_joint_distribution_alone(kind: str, width: int) -> None:
    assert _fits(KINDS[kind](width, NUM_DRAWS))


def test_one_drawn_child_is_accepted_as_often_as_the_distributions_overlap() -> None:
    """Leviathan's optimum: one less the total variation distance."""
    source = Source(30)
    trees = [_tree(order[:1]) for order in _orders(FIRST_TOKEN)[: NUM_DRAWS // 4]]
    overlap = np.minimum(TRANSITIONS[FIRST_TOKEN], DRAFT_TRANSITIONS[FIRST_TOKEN]).sum()

    for tree in trees:
        source.pair(tree, {ROOT: _drawn(tree, ROOT)})

    assert source.num_accepted / len(trees) == pytest.approx(overlap, abs=0.03)


def test_pruning_by_what_was_drawn_is_exact() -> None:
    """Nodes may lose their rows for what they hold: the draws themselves are still tried."""
    source = Source(40)
    pairs = []
    for index in range(NUM_DRAWS // 2):
        tree, drawn = _drawn_tree(index, 2)
        kept = _tree(tree.token_ids[:1]) if tree.token_ids[0] in (0, 1) else EMPTY
        pairs.append(source.pair(kept, {ROOT: drawn[ROOT]}))

    assert _is_plausible(pairs)


def test_guesses_beside_draws_are_exact() -> None:
    """Children of another fact are appended after the draws, as chosen ones."""
    source = Source(50)
    pairs = []
    for first, *_ in _orders(FIRST_TOKEN)[: NUM_DRAWS // 2]:
        tree = _tree((first, *(token for token in (3, 0, 1) if token != first)))
        pairs.append(source.pair(tree, {ROOT: _drawn(_tree((first,)), ROOT)}))

    assert _is_plausible(pairs)


def test_draft_chosen_greedily_but_stated_as_drawn_is_biased() -> None:
    """B016: why a distribution is believed from trusted pools alone; chosen drafts state none."""
    source = Source(60)
    tree = _tree((3,))

    believed = [source.pair(tree, {ROOT: _drawn(tree, ROOT)}) for _ in range(NUM_DRAWS // 4)]
    tried = [source.pair(tree) for _ in range(NUM_DRAWS // 4)]

    assert not _is_plausible(believed)
    assert _is_plausible(tried)


def test_neighbouring_trials_and_positions_are_independent() -> None:
    """B028, B029: a number does not foretell the next trial, the next position or the next seed."""
    keys = [trial_key(seed, 0) for seed in range(NUM_DRAWS)]
    numbers = np.array(
        [
            [trial_number(key, 7, LAST_DRAW), trial_number(key, 7, 1), trial_number(key, 8, 1)]
            for key in keys
        ]
    )

    assert all(stats.kstest(column, "uniform").pvalue > MIN_P_VALUE for column in numbers.T)
    for one, other in (*pairwise(numbers.T), (numbers[:-1, 0], numbers[1:, 0])):
        table, _, _ = np.histogram2d(one, other, bins=8, range=[[0, 1], [0, 1]])
        assert stats.chi2_contingency(table).pvalue > MIN_P_VALUE


def _engine_pairs(num_draws: int) -> list[tuple[int, int]]:
    """Return pairs that an engine emits whose budget keeps the likelier half of what was drawn."""
    target = TableTarget(lambda tokens: LOG_ROWS[tokens[-1]], vocab_size=VOCAB)
    config = EngineConfig(
        num_blocks=1024,
        block_size=8,
        max_running=250,
        max_draft_tokens=2,
        budget=BudgetMode.FIXED,
        prefix_caching=False,
    )
    engine = StepEngine(target, config)
    answers: dict[int, list[int]] = {index: [] for index in range(num_draws)}
    for start in range(0, num_draws, config.max_running):
        for index in range(start, start + config.max_running):
            sampling = SamplingParams(temperature=1.0, seed=mix64(index), rule=Rule.REJECTION)
            limits = TokenLimits(max_tokens=2)
            asked = Request(index, (FIRST_TOKEN,), sampling=sampling, limits=limits, lockstep=True)
            engine.apply(Submit(asked))
            tree, drawn = _drawn_tree(index, 2)
            stated = tuple(-1.0 - (token_id % 3) for token_id in tree.token_ids)
            tree = TokenTree(tree.token_ids, tree.parents, stated)
            for fact in (TreeFact(index, 1, tree, drawn=drawn), TreeFact(index, 1, EMPTY)):
                engine.apply(fact)
        while engine.has_work():
            for step in engine.step().steps:
                answers[step.sequence_id].extend(step.token_ids)
    return [(one, other) for one, other in answers.values()]


@pytest.mark.statistical_long
@pytest.mark.timeout(900)
def test_the_engine_keeps_the_joint_distribution_as_it_prunes() -> None:
    """B013, B014: draws through trie, selection, walk and commit, with less room than nodes."""
    assert _is_plausible(_engine_pairs(NUM_DRAWS // 2))
