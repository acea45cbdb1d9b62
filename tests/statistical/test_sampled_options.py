"""Both rules give the distribution that temperature, cuts, penalties and grammar leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from paceline.noise import gumbel_noise, mix64
from verify_service.engine.drawn_children import DrawnChildren
from verify_service.engine.rejection import Residual, emitted, picker, trial_key, trial_number
from verify_service.engine.sampler import Picker, choose, left_by_cuts, pick
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.sequence import Sequence as Running

NUM_DRAWS = 20_000
MAX_DISTANCE = 0.02
MIN_P_VALUE = 0.001

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

VOCAB = 8
PROMPT = (1, 2, 2)
EMITTED = (2, 3)
PATH = (3,)
LOGITS = np.log(np.array([0.3, 0.2, 0.16, 0.12, 0.1, 0.07, 0.04, 0.01]))
STOP = 4
ALLOWED = np.array([True, True, False, True, True, False, True, True])


class EveryOther:
    """A grammar that allows the same ids everywhere."""

    def mask(self, path: object) -> torch.Tensor:
        """Return what is allowed."""
        return torch.from_numpy(ALLOWED)

    def num_allowed(self, path: Sequence[int]) -> int:
        """Return that all of it is."""
        return len(path)

    def forced(self) -> tuple[int, ...]:
        """Return nothing."""
        return ()

    def commit(self, token_ids: object) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Case:
    """Options and what they should do, said once more in numpy."""

    params: SamplingParams
    has_grammar: bool = False
    min_tokens: int = 0

    def scores(self) -> torch.Tensor:
        """Return the row as the engine adjusts it, caught where a token would be picked."""
        caught: list[torch.Tensor] = []

        def catch(scores: torch.Tensor, params: SamplingParams, position: int) -> int:
            caught.append(scores)
            return 0

        limits = TokenLimits(99, min_tokens=self.min_tokens, stop_token_ids=frozenset({STOP}))
        request = Request(
            1,
            PROMPT,
            EMITTED,
            sampling=self.params,
            limits=limits,
            constraint=EveryOther() if self.has_grammar else None,
        )
        choose(
            torch.tensor(LOGITS, dtype=torch.float32),
            Running(request, Drafting(), 0.0, 8),
            PATH,
            catch,
        )
        return caught[0]

    def expected(self) -> Floats:
        """Return the distribution, by a reference of its own."""
        params, scores = self.params, LOGITS.copy()
        for token_id in {*PROMPT, *EMITTED, *PATH}:
            factor = params.repetition_penalty
            scores[token_id] *= factor if scores[token_id] <= 0 else 1 / factor
        for token_id in (*EMITTED, *PATH):
            scores[token_id] -= params.frequency_penalty
        for token_id in {*EMITTED, *PATH}:
            scores[token_id] -= params.presence_penalty
        for token_id, bias in params.logit_bias.items():
            scores[token_id] += bias
        if self.min_tokens:
            scores[STOP] = -math.inf
        if self.has_grammar:
            scores[~ALLOWED] = -math.inf
        probs = np.exp(scores / params.temperature)
        return self._cut(probs / probs.sum())

    def _cut(self, probs: Floats) -> Floats:
        order = np.argsort(-probs, kind="stable")
        if self.params.top_k:
            probs[order[self.params.top_k :]] = 0.0
            probs /= probs.sum()
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= self.params.top_p]] = 0.0
        probs[probs < self.params.min_p * probs.max()] = 0.0
        return np.asarray(probs / probs.sum())


PENALTIES = SamplingParams(
    repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={6: 1.5}
)
CASES = {
    "top-p": Case(SamplingParams(top_p=0.8)),
    "penalties": Case(PENALTIES, min_tokens=9),
    "grammar": Case(SamplingParams(), has_grammar=True),
    "all of them": Case(replace(PENALTIES, top_k=6, top_p=0.93, min_p=0.05), has_grammar=True),
}

DRAFT = np.array([0.05, 0.1, 0.3, 0.05, 0.2, 0.1, 0.1, 0.1])
SHARES = dict(enumerate(DRAFT))
ORDERS = np.argsort(
    -(np.log(DRAFT) + np.random.default_rng(5).gumbel(size=(NUM_DRAWS, VOCAB))), axis=1
)[:, :2].tolist()
POSITION = 6
NUM_PICKED = 40
"""Draws made once more by the engine's own pickers, which cost more than what they draw."""


def _match(ids: Ids, scaled: Floats) -> tuple[list[int], list[Picker]]:
    seeds = [mix64(index) for index in range(NUM_DRAWS)]
    drawn = [int(ids[(scaled + gumbel_noise(seed, POSITION, ids)).argmax()]) for seed in seeds]
    return drawn, [_seeded(seed) for seed in seeds[:NUM_PICKED]]


def _seeded(seed: int) -> Picker:
    return lambda scores, params, position: pick(scores, replace(params, seed=seed), position)


def _reject(
    ids: Ids, scaled: Floats, drafts: Callable[[int], tuple[DrawnChildren | None, list[int]]]
) -> tuple[list[int], list[Picker]]:
    weights = np.exp(scaled - scaled.max())
    keys = [trial_key(mix64(index), 0) for index in range(NUM_DRAWS)]
    drawn = [
        emitted(Residual(ids, weights), *drafts(index), partial(trial_number, key, POSITION))
        for index, key in enumerate(keys)
    ]
    return drawn, [picker(keys[index], *drafts(index)) for index in range(NUM_PICKED)]


def _drawn(index: int) -> tuple[DrawnChildren | None, list[int]]:
    return DrawnChildren(tuple(ORDERS[index]), SHARES), [0]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rule", ["sample-and-match", "rejection"])
def test_tokens_have_the_distribution_that_the_options_leave(
    rule: str, name: str, temperature: float
) -> None:
    """B019, B022, B023, B079: at each rule; and no token from outside of it."""
    case = CASES[name]
    case = replace(case, params=replace(case.params, temperature=temperature))
    scores, expected = case.scores(), case.expected()
    kept = left_by_cuts(scores, case.params)
    assert kept is not None
    order = torch.argsort(kept[0])
    ids, scaled = (each[order].numpy() for each in kept)

    if rule == "rejection":
        drawn, pickers = _reject(ids, scaled, _drawn)
    else:
        drawn, pickers = _match(ids, scaled)

    seen = np.bincount(drawn, minlength=VOCAB)
    inside = expected > 0
    assert seen[inside].sum() == NUM_DRAWS
    assert np.abs(seen / NUM_DRAWS - expected).sum() / 2 < MAX_DISTANCE
    assert stats.chisquare(seen[inside], expected[inside] * NUM_DRAWS).pvalue > MIN_P_VALUE
    picked = [each(scores, case.params, POSITION) for each in pickers]
    assert picked == drawn[:NUM_PICKED]
