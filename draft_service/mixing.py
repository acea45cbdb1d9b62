"""
How likely a token is when several drafters have an opinion about it.

Logistic mixing (Mahoney, PAQ6, 2005): opinions are added as log-odds, under weights learned online
from what was committed. Every opinion is scored at each committed token, verified or not. It knows
no trees and no sessions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

_LEARNING_RATE: Final = 0.03
_MAX_WEIGHT: Final = 2.0
_DISSENT_WEIGHT: Final = 0.3
"""Of a drafter that expects something else: its doubt counts, less than its belief."""

_UNSAID_SHARE: Final = 0.1
"""Part of what a drafter left open that one token that it did not name may have."""

_MIN_PROBABILITY: Final = 1e-4
_MAX_PROBABILITY: Final = 1.0 - 1e-4

_SILENT, _DISSENTS, _PROPOSES = range(3)

Stance: TypeAlias = tuple[int, ...]
"""For each drafter whether it is silent at a node, names other tokens, or names this one."""


class Opinion(NamedTuple):
    """What one drafter says at a node: the probabilities of the tokens that it names."""

    probabilities: Mapping[int, float]

    @property
    def left_open(self) -> float:
        """The probability that it gave to no token."""
        return max(1.0 - sum(self.probabilities.values()), 0.0)


class Estimate(NamedTuple):
    """A mixed probability of one token, and what it was mixed from."""

    token_id: int
    probability: float
    stance: Stance
    log_odds: tuple[float, ...]


class Mixer:
    """The weights of a set of drafters, for one session or one workload."""

    __slots__ = ("_weights",)

    def __init__(self, start: Mixer | None = None) -> None:
        self._weights: dict[Stance, list[float]] = (
            {stance: list(weights) for stance, weights in start._weights.items()} if start else {}
        )

    def mix(self, opinions: Sequence[Opinion]) -> list[Estimate]:
        """Return an estimate of each token that any opinion names; they sum to at most one."""
        speaking = [drafter for drafter, each in enumerate(opinions) if each.probabilities]
        if not speaking:
            return []
        if len(speaking) == 1:
            estimates = self._alone(speaking[0], opinions)
        else:
            left_open = [opinion.left_open for opinion in opinions]
            token_ids = {token_id for opinion in opinions for token_id in opinion.probabilities}
            estimates = [
                self._estimate(token_id, opinions, left_open) for token_id in sorted(token_ids)
            ]
        total = sum(estimate.probability for estimate in estimates)
        if total <= 1.0:
            return estimates
        return [each._replace(probability=each.probability / total) for each in estimates]

    def learn(self, estimates: Sequence[Estimate], committed_token_id: int) -> None:
        """Move the weights towards those that would have told the committed token."""
        for estimate in estimates:
            hit = estimate.token_id == committed_token_id
            step = _LEARNING_RATE * (hit - estimate.probability)
            weights = self._weights_of(estimate.stance)
            for drafter, log_odds in enumerate(estimate.log_odds):
                weight = weights[drafter] + step * log_odds
                weights[drafter] = min(max(weight, 0.0), _MAX_WEIGHT)

    def approach(self, other: Mixer, rate: float) -> None:
        """Move all weights a part of the way to those of another mixer."""
        for stance, weights in other._weights.items():
            own = self._weights_of(stance)
            for drafter, weight in enumerate(weights):
                own[drafter] += rate * (weight - own[drafter])

    def _alone(self, speaker: int, opinions: Sequence[Opinion]) -> list[Estimate]:
        """Return the estimates where one drafter speaks: most nodes of most trees."""
        before, after = (_SILENT,) * speaker, (_SILENT,) * (len(opinions) - speaker - 1)
        stance = (*before, _PROPOSES, *after)
        weight = self._weights_of(stance)[speaker]
        silence_before, silence_after = (0.0,) * len(before), (0.0,) * len(after)
        estimates = []
        for token_id, probability in opinions[speaker].probabilities.items():
            log_odds = _logit(probability)
            mixed = 1.0 / (1.0 + math.exp(-weight * log_odds))
            all_odds = (*silence_before, log_odds, *silence_after)
            estimates.append(Estimate(token_id, mixed, stance, all_odds))
        return estimates

    def _estimate(
        self, token_id: int, opinions: Sequence[Opinion], left_open: Sequence[float]
    ) -> Estimate:
        stance, log_odds = [], []
        for opinion, unsaid in zip(opinions, left_open, strict=True):
            probability = opinion.probabilities.get(token_id)
            if probability is not None:
                stance.append(_PROPOSES)
                log_odds.append(_logit(probability))
            elif opinion.probabilities:
                stance.append(_DISSENTS)
                log_odds.append(_logit(unsaid * _UNSAID_SHARE))
            else:
                stance.append(_SILENT)
                log_odds.append(0.0)
        known = tuple(stance)
        mixed = sum(
            weight * value for weight, value in zip(self._weights_of(known), log_odds, strict=True)
        )
        return Estimate(token_id, 1.0 / (1.0 + math.exp(-mixed)), known, tuple(log_odds))

    def _weights_of(self, stance: Stance) -> list[float]:
        weights = self._weights.get(stance)
        if weights is None:
            weights = self._weights[stance] = _first_weights(stance)
        return weights


def _first_weights(stance: Stance) -> list[float]:
    num_for = stance.count(_PROPOSES)
    # Opinions that agree are partly the same evidence: two count for 1.4, not for 2.
    of_proposers = 1.0 / math.sqrt(num_for) if num_for else 0.0
    by_stance = {_SILENT: 0.0, _DISSENTS: _DISSENT_WEIGHT, _PROPOSES: of_proposers}
    return [by_stance[each] for each in stance]


def _logit(probability: float) -> float:
    bounded = min(max(probability, _MIN_PROBABILITY), _MAX_PROBABILITY)
    return math.log(bounded / (1.0 - bounded))
