"""
How likely a token is that followed earlier occurrences of the same context.

Prediction by partial matching with learned escapes (Cleary, Witten 1984): occurrences are grouped
by match length, the longest group speaks first and leaves some probability to the shorter ones.
How much follows from the length, from how often the group agrees with itself, and from what this
session's target has committed so far. It knows no tokens and no trees.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

_LENGTH_FLOORS: Final = (2, 3, 4, 5, 7, 9, 13, 17, 25)
_LONGEST: Final = 32
_NUM_LENGTH_BUCKETS: Final = len(_LENGTH_FLOORS) + 1
_RESUMED_FLOORS: Final = (2, 4, 8)
_NUM_RESUMPTIONS: Final = 3
_NUM_BUCKETS: Final = _NUM_LENGTH_BUCKETS + _NUM_RESUMPTIONS + len(_RESUMED_FLOORS) + 1

# Log-odds measured on source text (bench/ngram.py), for one occurrence: by match length, by the way
# in which a copy resumes after a difference, and by how far a resumed copy has agreed since.
_FIRST_LOGITS: Final = (
    *(-1.3, -0.2, 0.25, 0.55, 0.75, 1.0, 1.3, 1.7, 2.4, 2.6),
    *(0.2, -1.8, -2.8),
    *(1.0, 1.5, 1.9, 2.4),
)
_BACKOFF_LOGITS: Final = (
    *(-2.0, -1.5, -1.2, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0),
    *(-0.5, -2.3, -3.2),
    *(-1.0, -1.0, -1.0, -1.0),
)
# What 0, 1, 2, 3 or more further occurrences that agree add, and what disagreement takes away.
_REPEAT_LOGITS: Final = (0.0, 0.8, 1.5, 2.2)
_DISSENT_LOGIT: Final = -0.5
_NUM_REPEATS: Final = len(_REPEAT_LOGITS)

# Buckets of one class are learned together: short, middle and long matches, the ways to resume.
_CLASS_OF_BUCKET: Final = (0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5, 5, 5, 5)
_NUM_CLASSES: Final = max(_CLASS_OF_BUCKET) + 1
_LEARNING_RATES: Final = (0.15, 0.25, 0.3, 0.3, 0.5, 0.3)
_MAX_SHIFT: Final = 3.0


def length_bucket(length: int) -> int:
    """Return the bucket of a match length: lengths of one bucket count as equal."""
    return _BUCKETS[length] if length <= _LONGEST else _NUM_LENGTH_BUCKETS - 1


def resumed_bucket(resumption: int, depth: int) -> int:
    """Return the bucket of a resumed copy that has agreed for ``depth`` tokens."""
    if depth == 0:
        return _NUM_LENGTH_BUCKETS + resumption - 1
    return _NUM_LENGTH_BUCKETS + _NUM_RESUMPTIONS + bisect_right(_RESUMED_FLOORS, depth)


def evidence_slot(bucket: int, num_occurrences: int, num_tokens: int, *, is_first: bool) -> int:
    """
    Return the number that stands for what a group of occurrences looks like.

    ``num_tokens`` distinct tokens followed its ``num_occurrences`` occurrences; it is the first if
    no longer group spoke before.
    """
    repeats = min(num_occurrences - num_tokens, _NUM_REPEATS - 1)
    row = bucket if is_first else _NUM_BUCKETS + bucket
    return (row * _NUM_REPEATS + repeats) * 2 + (num_tokens > 1)


def sole_slot(bucket: int) -> int:
    """Return the slot of a single occurrence."""
    return bucket * _NUM_REPEATS * 2


def _prior_logit(slot: int) -> float:
    row, rest = divmod(slot, _NUM_REPEATS * 2)
    repeats, has_dissent = divmod(rest, 2)
    base = (*_FIRST_LOGITS, *_BACKOFF_LOGITS)[row]
    return base + _REPEAT_LOGITS[repeats] + _DISSENT_LOGIT * has_dissent


def _slot_class(slot: int) -> int:
    return _CLASS_OF_BUCKET[slot // (_NUM_REPEATS * 2) % _NUM_BUCKETS]


_BUCKETS: Final = tuple(bisect_right(_LENGTH_FLOORS, length) for length in range(_LONGEST + 1))
_NUM_SLOTS: Final = 2 * _NUM_BUCKETS * _NUM_REPEATS * 2
_PRIOR_LOGITS: Final = tuple(_prior_logit(slot) for slot in range(_NUM_SLOTS))
_SLOT_CLASSES: Final = tuple(_slot_class(slot) for slot in range(_NUM_SLOTS))


class Confidence:
    """The hit rates of one session: those of text in general, shifted by its own experience."""

    __slots__ = ("_log_rates", "_shifts")

    def __init__(self) -> None:
        self._shifts = [0.0] * _NUM_CLASSES
        self._log_rates: dict[int, float] = {}

    def hit_rate(self, slot: int) -> float:
        """Return the probability that the next token is one of the group's."""
        return 1.0 / (1.0 + math.exp(-_PRIOR_LOGITS[slot] - self._shifts[_SLOT_CLASSES[slot]]))

    def log_hit_rate(self, slot: int) -> float:
        """Return the logarithm of the hit rate."""
        log_rate = self._log_rates.get(slot)
        if log_rate is None:
            log_rate = self._log_rates[slot] = math.log(self.hit_rate(slot))
        return log_rate

    def learn(self, slot: int, *, hit: bool) -> None:
        """Take into account whether a group held the token that was committed."""
        self._log_rates.clear()
        group_class = _SLOT_CLASSES[slot]
        shifted = self._shifts[group_class] + _LEARNING_RATES[group_class] * (
            hit - self.hit_rate(slot)
        )
        self._shifts[group_class] = min(max(shifted, -_MAX_SHIFT), _MAX_SHIFT)
