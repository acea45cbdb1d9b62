"""
The rule REJECTION: a token is drawn from the target's distribution with the drafts' help (Leviathan
et al. 2022, Chen et al. 2023), for siblings recursively without replacement (Chen et al. 2024,
"Sequoia"; Jeon et al. 2024, "Recursive speculative decoding"). Pure, but for the picker's arrays.

What is emitted at a node depends on the target's distribution there, on the drafts of that node and
on numbers that no drafter knows; never on which nodes had a row in this step. So pruning is free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.noise import GOLDEN, MASK64, mix64, stream_key
from verify_service.engine.drawn_children import DrawnChildren
from verify_service.engine.sampler import Picker, left_by_cuts
from verify_service.engine.sampling import SamplingParams

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

LAST_DRAW = 0
"""The trial that draws from what the drafts leave; siblings are tried as 1, 2, ..."""

_NOTHING_LEFT = 1e-12
"""A residual lighter than this is rounding: the two distributions are the same."""


def trial_key(seed: int, num_resumed: int) -> int:
    """
    Return the key of a sequence's numbers.

    A one-way hash, apart from the shared noise: whoever could foretell the numbers could aim drafts
    at them. A resume after ``num_resumed`` tokens draws afresh, since drafters may remember tokens
    that were drawn with the old numbers and never delivered.
    """
    content = (seed & MASK64).to_bytes(8, "little") + num_resumed.to_bytes(8, "little")
    digest = hashlib.blake2b(content, digest_size=8, person=b"paceline-trials")
    return int.from_bytes(digest.digest(), "little")


def trial_number(key: int, position: int, trial: int) -> float:
    """Return the number in (0, 1) that decides a trial at a position."""
    bits = mix64(stream_key(key, position) + trial * GOLDEN) >> 11
    return (bits + 0.5) * 2.0**-53


def picker(key: int, drawn: DrawnChildren | None, guesses: SequenceOf[int]) -> Picker:
    """
    Return how a node picks its token.

    ``drawn`` are the children that were drawn at random, if any; ``guesses`` are children chosen in
    any other way, tried in their order.
    """

    def pick(scores: torch.Tensor, params: SamplingParams, position: int) -> int | None:
        kept = left_by_cuts(scores, params)
        if kept is None:
            return None
        token_ids, log_weights = (each.cpu().numpy() for each in kept)
        if (token_ids[1:] < token_ids[:-1]).any():
            order = np.argsort(token_ids)
            token_ids, log_weights = token_ids[order], log_weights[order]
        residual = Residual(token_ids, np.exp(log_weights - log_weights.max()))
        return emitted(residual, drawn, guesses, lambda trial: trial_number(key, position, trial))

    return pick


class Residual:
    """What is left of the target's distribution as drafts are rejected; weights of any sum."""

    def __init__(self, token_ids: Ids, weights: Floats) -> None:
        self._token_ids = token_ids  # ascending
        self._weights = weights.astype(np.float64)

    def accepts(self, token_id: int, draft_prob: float, number: float) -> bool:
        """Return whether a draft that had this probability is accepted."""
        place = self._place(token_id)
        if place is None:
            return False
        return bool(number * draft_prob * self._weights.sum() < self._weights[place])

    def drop(self, token_id: int) -> None:
        """Leave out a rejected guess."""
        place = self._place(token_id)
        if place is not None:
            self._weights[place] = 0.0

    def subtract(self, token_ids: Ids, draft_probs: Floats) -> None:
        """Leave what the target has beyond a draft distribution that was rejected."""
        places = np.searchsorted(self._token_ids, token_ids).clip(max=len(self._token_ids) - 1)
        known = self._token_ids[places] == token_ids
        left = self._weights / self._weights.sum()
        left[places[known]] = (left[places[known]] - draft_probs[known]).clip(min=0.0)
        if left.sum() > _NOTHING_LEFT:
            self._weights = left

    def draw(self, number: float) -> int:
        """Return a token drawn from what is left."""
        reached = np.cumsum(self._weights)
        place = int(np.searchsorted(reached, number * reached[-1], side="right"))
        last = int(np.flatnonzero(self._weights)[-1])
        return int(self._token_ids[min(place, last)])

    def _place(self, token_id: int) -> int | None:
        place = int(np.searchsorted(self._token_ids, token_id))
        is_known = place < len(self._token_ids) and self._token_ids[place] == token_id
        return place if is_known else None


def emitted(
    residual: Residual,
    drawn: DrawnChildren | None,
    guesses: SequenceOf[int],
    number_of: Callable[[int], float],
) -> int:
    """
    Return the token that is emitted: an accepted draft or one drawn from what the rejected leave.

    ``number_of(trial)`` are independent, uniform in (0, 1) and independent of the drafts.
    """
    num_drawn = 0
    if drawn is not None:
        num_drawn = len(drawn.token_ids)
        accepted = _first_accepted_draw(residual, drawn, number_of)
        if accepted is not None:
            return accepted
        guesses = [token_id for token_id in guesses if token_id not in drawn.token_ids]
    for trial, token_id in enumerate(guesses, LAST_DRAW + 1 + num_drawn):
        if residual.accepts(token_id, 1.0, number_of(trial)):
            return token_id
        residual.drop(token_id)
    return residual.draw(number_of(LAST_DRAW))


def _first_accepted_draw(
    residual: Residual, drawn: DrawnChildren, number_of: Callable[[int], float]
) -> int | None:
    shares = dict(drawn.draft_probs)
    for trial, token_id in enumerate(drawn.token_ids, LAST_DRAW + 1):
        if token_id not in shares:
            # What the stated distribution cannot give was no draw from it: it counts as a guess.
            if residual.accepts(token_id, 1.0, number_of(trial)):
                return token_id
            residual.drop(token_id)
            continue
        total = sum(shares.values())
        if residual.accepts(token_id, shares[token_id] / total, number_of(trial)):
            return token_id
        token_ids = np.fromiter(shares, np.int64, len(shares))
        residual.subtract(token_ids, np.fromiter(shares.values(), np.float64) / total)
        del shares[token_id]
    return None
