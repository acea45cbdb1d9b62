"""Sample-and-match draws from the target's distribution: exactly, jointly, whatever is drafted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from paceline.noise import derive_seed, gumbel_noise, mix64
from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Harness
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampler import pick
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import Submit, TreeFact
from verify_service.targets.table import TableTarget

NUM_DRAWS = 20_000
MIN_P_VALUE = 0.001
MAX_DISTANCE = 0.02

Floats = NDArray[np.float64]

PROBABILITIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def _is_plausible(counts: Counter[int], expected: Floats) -> bool:
    """Return whether counts of 0, 1, ... look drawn from ``expected``, and never from outside."""
    seen = np.array([counts[index] for index in range(len(expected))], dtype=np.float64)
    inside = expected > 0
    if seen[~inside].any() or sum(counts.values()) != seen.sum():
        return False
    p_value = stats.chisquare(seen[inside], expected[inside] * seen.sum()).pvalue
    distance = np.abs(seen / seen.sum() - expected).sum() / 2
    return bool(p_value > MIN_P_VALUE and distance < MAX_DISTANCE)


def _target_probs(temperature: float, kept: Sequence[int]) -> Floats:
    weights = np.zeros(len(PROBABILITIES))
    weights[list(kept)] = PROBABILITIES[list(kept)] ** (1 / temperature)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param(
            SamplingParams(temperature=1.0), _target_probs(1.0, range(5)), id="T=1"
        ),
        pytest.param(
            SamplingParams(temperature=0.5), _target_probs(0.5, range(5)), id="T=0.5"
        ),
        pytest.param(
            SamplingParams(temperature=1.0, top_k=3), _target_probs(1.0, range(3)), id="top-k"
        ),
        pytest.param(
            # 0.4 + 0.3 + 0.15 = 0.85 is the first sum that reaches 0.8.
            SamplingParams(temperature=1.0, top_p=0.8), _target_probs(1.0, range(3)), id="top-p"
        ),
        pytest.param(
            # At T = 0.5 the two best tokens hold 0.877 already.
            SamplingParams(temperature=0.5, top_p=0.8), _target_probs(0.5, range(2)),
            id="top-p after temperature",
        ),
        pytest.param(
            # Over the best three, two hold 0.7 / 0.85 = 0.82.
            SamplingParams(temperature=1.0, top_k=3, top_p=0.8), _target_probs(1.0, range(2)),
            id="top-p over what top-k left",
        ),
    ],
)  # fmt: skip
def test_drawn_tokens_have_the_targets_distribution(
    params: SamplingParams, expected: Floats
) -> None:
    """B019: and cuts leave nothing outside of them."""
    row = torch.tensor(np.log(PROBABILITIES), dtype=torch.float32)
    kept = np.flatnonzero(expected)
    scaled = np.log(PROBABILITIES[kept]) / params.temperature
    seeds = [derive_seed(1, index) for index in range(NUM_DRAWS // 200)]

    drawn = [
        int(kept[(scaled + gumbel_noise(seed, position, kept)).argmax()])
        for seed in seeds
        for position in range(200)
    ]
    picked = [
        pick(row, replace(params, seed=seed), position)
        for seed in seeds[:2]
        for position in range(200)
    ]

    assert _is_plausible(Counter(drawn), expected)
    assert picked == drawn[: len(picked)]


def test_noise_is_standard_gumbel() -> None:
    values = gumbel_noise(7, 3, np.arange(100_000))

    assert stats.kstest(values, "gumbel_r").pvalue > MIN_P_VALUE


def _draws(seeds: Sequence[int], positions: Sequence[int]) -> list[int]:
    ids = np.arange(8)
    return [
        int(gumbel_noise(seed, position, ids).argmax())
        for seed, position in zip(seeds, positions, strict=True)
    ]


def _are_independent(ones: Sequence[int], others: Sequence[int]) -> bool:
    table = np.zeros((8, 8))
    np.add.at(table, (ones, others), 1)
    return bool(stats.chi2_contingency(table).pvalue > MIN_P_VALUE)


def test_neighbouring_positions_are_independent() -> None:
    """B028: a stream does not follow itself."""
    drawn = _draws([5] * (NUM_DRAWS + 2), range(NUM_DRAWS + 2))

    assert _are_independent(drawn[:-1], drawn[1:])
    assert _are_independent(drawn[:-2], drawn[2:])


@pytest.mark.parametrize("other", ["next seed", "derived seed", "next position of next seed"])
def test_streams_of_related_seeds_are_independent(other: str) -> None:
    """B029: neither equal nor shifted against each other."""
    seeds = [index // 100 * 2 for index in range(NUM_DRAWS)]
    positions = [index % 100 for index in range(NUM_DRAWS)]
    related = {
        "next seed": ([seed + 1 for seed in seeds], positions),
        "derived seed": ([derive_seed(seed, 1) for seed in seeds], positions),
        "next position of next seed": ([s + 1 for s in seeds], [p + 1 for p in positions]),
    }[other]

    assert _are_independent(_draws(seeds, positions), _draws(*related))


VOCAB = 4
TRANSITIONS = np.array(
    [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]]
)
"""From the last token to the next: the second depends on the first."""

LOG_TRANSITIONS = np.log(TRANSITIONS)
ROWS = [[float(value) for value in row] for row in LOG_TRANSITIONS]
PROMPT = (0,)
BATCH = 250


def _engine() -> StepEngine:
    target = TableTarget(lambda tokens: ROWS[tokens[-1]], vocab_size=VOCAB)
    config = EngineConfig(
        num_blocks=1024,
        block_size=8,
        max_running=BATCH,
        budget=BudgetMode.FIXED,
        prefix_caching=False,
        draft_pools=(POOL,),
    )
    return StepEngine(target, config)


@dataclass
class Pair:
    """The first two tokens after the prompt, and how many came from the draft."""

    token_ids: list[int] = field(default_factory=list)
    num_accepted: int = 0


def _verified(trees: Sequence[TokenTree], *, first_seed: int) -> list[Pair]:
    """Return the two tokens that a sequence with a seed of its own emits for each tree."""
    engine = _engine()
    pairs = [Pair() for _ in trees]
    for start in range(0, len(trees), BATCH):
        for index, tree in enumerate(trees[start : start + BATCH], start):
            sampling = SamplingParams(temperature=1.0, seed=mix64(first_seed + index))
            limits = TokenLimits(max_tokens=2)
            request = Request(index, PROMPT, sampling=sampling, limits=limits, lockstep=True)
            engine.apply(Submit(request))
            # The empty one is for the second token of those whose draft was wrong.
            for proposal in (tree, TokenTree()):
                engine.apply(TreeFact(index, len(PROMPT), proposal))
        while engine.has_work():
            for step in engine.step().steps:
                pairs[step.sequence_id].token_ids.extend(step.token_ids)
                pairs[step.sequence_id].num_accepted += step.num_accepted
    return pairs


FIRST = TRANSITIONS[PROMPT[-1]]
JOINT = (FIRST[:, None] * TRANSITIONS).ravel()


def _cells(pairs: Sequence[Pair]) -> Counter[int]:
    return Counter(VOCAB * pair.token_ids[0] + pair.token_ids[1] for pair in pairs)


def test_drafts_leave_the_joint_distribution_alone() -> None:
    """B013-B015: drafts of 1 to 4 siblings, likeliest first or last, never right to always."""
    by_width: dict[int, list[Pair]] = {}
    for width in (1, 2, 3, 4):
        best_first, best_last = tuple(range(width)), tuple(range(VOCAB - 1, VOCAB - 1 - width, -1))
        trees = [TokenTree(order, (0,) * width) for order in (best_first, best_last)]
        by_width[width] = _verified(trees * (NUM_DRAWS // 8), first_seed=width << 40)

    for width, pairs in by_width.items():
        seen = _cells(pairs)
        counts = np.array([seen[cell] for cell in range(VOCAB**2)])
        assert stats.chisquare(counts, JOINT * counts.sum()).pvalue > MIN_P_VALUE
        hits = np.mean([pair.num_accepted for pair in pairs])
        assert hits == pytest.approx((FIRST[:width].sum() + FIRST[-width:].sum()) / 2, abs=0.025)
    assert _is_plausible(_cells([pair for pairs in by_width.values() for pair in pairs]), JOINT)


def test_sampled_draft_is_accepted_as_often_as_the_distributions_meet() -> None:
    """B017: acceptance is the sum of p times q; the draw that rejects is the one emitted."""
    draft_probs = np.array([0.1, 0.2, 0.3, 0.4])
    drafts = np.random.default_rng(3).choice(VOCAB, size=NUM_DRAWS // 10, p=draft_probs)

    pairs = _verified([TokenTree((int(draft),), (0,)) for draft in drafts], first_seed=9 << 40)

    accepted = np.mean([pair.num_accepted for pair in pairs])
    assert accepted == pytest.approx(FIRST @ draft_probs, abs=0.03)


def test_drafter_that_knows_noise_and_distribution_is_always_right() -> None:
    """Shared noise: at temperature 1, every draft of an exact drafter is accepted."""
    seed = 12345
    ids = np.arange(VOCAB)

    def propose(committed: Sequence[int]) -> TokenTree:
        token_ids: list[int] = []
        for _ in range(6):
            last = token_ids[-1] if token_ids else committed[-1]
            noise = gumbel_noise(seed, len(committed) + len(token_ids), ids)
            token_ids.append(int((LOG_TRANSITIONS[last] + noise).argmax()))
        return TokenTree.chain(token_ids)

    harness = Harness(_engine(), propose)
    sampling = SamplingParams(temperature=1.0, seed=seed)
    harness.submit(Request(1, PROMPT, sampling=sampling, limits=TokenLimits(max_tokens=700)))
    harness.run()

    steps = harness.emitted[1].steps
    assert len(set(harness.emitted[1].token_ids)) == VOCAB
    assert len(steps) == math.ceil((700 - 1) / 7) + 1
    assert all(step.num_accepted == step.num_drafted for step in steps)
