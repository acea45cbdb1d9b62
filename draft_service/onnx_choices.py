"""
The likeliest tokens after a context, by a draft model and the noise that the target will use.

The target takes ``argmax(logits / T + noise)``; with equal logits the best choice here is its
token. How sure that is depends on the gaps between the best scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.noise import gumbel_noise

NUM_RIVALS = 16
"""Tokens whose scores are compared; those further down share what is left."""

_PRIOR_SHARPNESS = {False: 3.5, True: 2.5}
"""By whether there is noise. A start only, each session learns its own: a draft model's
probabilities say how often a token is drawn, and its best choice is the target's best one far more
often than that."""

_PRIOR_OUTSIDE = 0.06
_LEARNING_RATE = 0.06
_OUTSIDE_RATE = 0.02
_MIN_SHARPNESS, _MAX_SHARPNESS = 0.3, 8.0


@dataclass(frozen=True, slots=True)
class Choices:
    """The best tokens after one context, the best one first."""

    token_ids: tuple[int, ...]
    gaps: npt.NDArray[np.float64]
    """How far each one's score lies below the best one's; 0 or less."""


class NoiseRows:
    """The noise of a session's head tokens by position, kept for the length of one pass."""

    def __init__(self, seed: int, head_token_ids: npt.NDArray[np.int64]) -> None:
        self._seed = seed
        self._head_token_ids = head_token_ids
        self._rows: dict[int, npt.NDArray[np.float64]] = {}

    def at(self, position: int) -> npt.NDArray[np.float64]:
        """Return the noise with which the token at a position is chosen  # [head tokens]."""
        if position not in self._rows:
            self._rows[position] = gumbel_noise(self._seed, position, self._head_token_ids)
        return self._rows[position]


def best_choices(
    scores: npt.NDArray[np.floating], head_token_ids: npt.NDArray[np.int64]
) -> Choices | None:
    """Return the tokens of the best scores; ``None`` if there is none that is a number."""
    count = min(NUM_RIVALS, len(scores))
    best = np.argpartition(scores, len(scores) - count)[-count:]
    # Equal scores in order of ids, as the target takes the first of them.
    best = best[np.lexsort((best, -scores[best]))]
    gaps = (scores[best] - scores[best[0]]).astype(np.float64)
    if not np.isfinite(gaps).all():
        return None
    return Choices(tuple(head_token_ids[best].tolist()), gaps)


class Sharpness:
    """
    How sure the choices of one session are, learned from what its target commits.

    The probability of a choice is a softmax over the gaps times a factor, the sharpness, which
    follows the gradient of the committed tokens' likelihood.
    """

    __slots__ = ("_log_sharpness", "_outside")

    def __init__(self, *, has_noise: bool) -> None:
        self._log_sharpness = math.log(_PRIOR_SHARPNESS[has_noise])
        self._outside = _PRIOR_OUTSIDE

    def log_probs(self, choices: Choices) -> Sequence[float]:
        """Return the log-probability of each choice."""
        inside = math.log1p(-self._outside)
        log_shares = self._log_shares(choices.gaps)
        return np.minimum(log_shares + inside, 0.0).tolist()  # type: ignore[no-any-return]

    def learn(self, choices: Choices, token_id: int) -> None:
        """Take in the token that followed."""
        is_inside = token_id in choices.token_ids
        self._outside += _OUTSIDE_RATE * (float(not is_inside) - self._outside)
        if not is_inside:
            return
        sharpness = math.exp(self._log_sharpness)
        shares = np.exp(self._log_shares(choices.gaps))
        gap = choices.gaps[choices.token_ids.index(token_id)]
        gradient = sharpness * float(gap - shares @ choices.gaps)
        moved = self._log_sharpness + _LEARNING_RATE * max(-2.0, min(gradient, 2.0))
        self._log_sharpness = min(max(moved, math.log(_MIN_SHARPNESS)), math.log(_MAX_SHARPNESS))

    def _log_shares(self, gaps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        scaled = gaps * math.exp(self._log_sharpness)
        return np.asarray(scaled - math.log(float(np.exp(scaled).sum())), np.float64)
