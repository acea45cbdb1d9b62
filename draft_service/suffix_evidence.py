"""
How likely a token is that followed earlier occurrences of a context, judged by what they look like.

Prediction by partial matching with learned escapes (Cleary, Witten 1984): the longest context
speaks first and leaves some probability to the shorter ones. How much follows from its length, its
occurrences, and whether the next shorter context agrees; and from what this session's target has
committed so far. What a group of occurrences looks like is one number, its evidence.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from draft_service.suffix_compiled import Integers, Reals, compiled

MAX_LENGTH: Final = 32
"""Longer contexts count as this long."""
_LENGTH_FLOORS: Final = np.array((2, 3, 4, 5, 7, 9, 13, 17, 25))
_BUCKETS: Final[Integers] = np.searchsorted(_LENGTH_FLOORS, np.arange(MAX_LENGTH + 1), "right")
_AGREED_FLOORS: Final[Integers] = np.array((1, 2, 4, 8, 16))
_NUM_LENGTHS: Final = 10
_NUM_GUESSES: Final = 5
_NUM_BUCKETS: Final = 21

NUM_SUPPORTS: Final = 5
NO_SUPPORT: Final = 0
"""There is no shorter context to ask."""
FIELD_BEGINS: Final = 4
"""Shorter contexts have been followed by something else nearly each time; see ``suffix_fields``."""

_NUM_REPEATS: Final = 6
_NUM_RIVALS: Final = 3

# Log-odds fitted to replayed text (bench/suffix.py): by what speaks, when it speaks first and when
# a longer context has spoken before; and what the other features add.
_FIRST_LOGITS: Final[Reals] = np.array(
    (
        *(-1.2, -0.1, 0.15, 0.25, 0.5, 0.6, 1.0, 1.1, 1.9, 2.6),
        *(0.0, -2.1, -2.8, -1.3, 0.6),
        *(0.2, 0.5, 0.6, 0.6, 0.8, 1.5),
    )
)
_LATER_LOGITS: Final[Reals] = np.array(
    (
        *(-1.65, -0.55, -0.65, -0.7, -0.8, -0.9, -0.4, -0.5, -0.8, -0.5),
        *(-0.3, -1.7, -3.1, -1.7, 0.0),
        *(-0.5, 0.5, 0.5, 0.0, 0.0, 0.0),
    )
)
_REPEAT_LOGITS: Final[Reals] = np.array((0.0, 0.6, 0.95, 1.1, 1.4, 1.9))
_RIVAL_LOGITS: Final[Reals] = np.array((0.0, -0.25, -0.5))
_SUPPORT_LOGITS: Final[Reals] = np.array((0.0, -0.5, 0.5, 1.9, -1.0))
_LATER_FIELD_LOGIT: Final = 0.25
"""Instead of the above, where a longer context has named the field's earlier values."""
_CORPUS_LOGIT: Final = 0.0

_CLASSES: Final[Integers] = np.array(
    (*(0, 0, 1, 1, 1, 1, 2, 2, 2, 2), *(3, 4, 4, 7, 8), *(5, 6, 6, 6, 6, 6))
)
_FIELD_CLASS: Final = 9
_CORPUS_CLASS: Final = 10
_LATER_FIELD_CLASS: Final = 13
NUM_CLASSES: Final = 14
"""Groups of one class are learned together: short, middle and long contexts of the session's own
text, the ways in which a copy goes on, the ends and beginnings of fields, the contexts of the
corpus, and what else may stand where a field begins than its earlier values."""
_LEARNING_RATES: Final[Reals] = np.array(
    (0.15, 0.25, 0.3, 0.3, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3, 0.15, 0.25, 0.3, 0.3)
)
_MAX_SHIFT: Final = 3.0


@compiled
def length_bucket(length: int) -> int:
    """Return the bucket of a context's length: lengths of one bucket count as equal."""
    return _BUCKETS[min(length, MAX_LENGTH)]


@compiled
def guess_bucket(resumption: int) -> int:
    """Return the bucket of a guess where a copy goes on after a difference."""
    return _NUM_LENGTHS + resumption


@compiled
def agreed_bucket(num_agreed: int) -> int:
    """Return the bucket of a copy that has agreed for so many tokens; 0: it has not begun."""
    bucket = _NUM_LENGTHS + _NUM_GUESSES
    for floor in _AGREED_FLOORS:
        bucket += num_agreed >= floor
    return bucket


@compiled
def support_of(num_agreeing: int, num_occurrences: int) -> int:
    """Return how far a shorter context agrees, of whose occurrences so many were followed alike."""
    if num_agreeing * 2 < num_occurrences:
        return 1
    return 2 if num_agreeing * 10 < num_occurrences * 9 else 3


@compiled
def evidence_of(bucket: int, num_occurrences: int, num_tokens: int, support: int) -> int:
    """
    Return the number that stands for what a group of occurrences looks like.

    ``num_tokens`` distinct tokens followed its ``num_occurrences`` occurrences. It is for a group
    that speaks first, of the session's own text.
    """
    repeats = num_occurrences - num_tokens
    if repeats > 3:
        repeats = 4 if repeats < 10 else 5
    rivals = min(num_tokens - 1, _NUM_RIVALS - 1)
    return ((bucket * _NUM_REPEATS + repeats) * _NUM_RIVALS + rivals) * NUM_SUPPORTS + support


_PER_BUCKET: Final = _NUM_REPEATS * _NUM_RIVALS * NUM_SUPPORTS
_NUM_FIRST: Final = _NUM_BUCKETS * _PER_BUCKET
LATER: Final = _NUM_FIRST
"""To be added to the evidence of a group that does not speak first."""
IN_CORPUS: Final = 2 * _NUM_FIRST
"""To be added to the evidence of a group of the corpus."""


@compiled
def hit_rate(evidence: int, shifts: Reals) -> float:
    """Return the probability that the next token is one of the group's."""
    in_corpus, is_later, bucket, rest = _parts(evidence)
    support = rest % NUM_SUPPORTS
    rivals = rest // NUM_SUPPORTS % _NUM_RIVALS
    repeats = rest // (NUM_SUPPORTS * _NUM_RIVALS)
    logit = _LATER_LOGITS[bucket] if is_later else _FIRST_LOGITS[bucket]
    logit += _REPEAT_LOGITS[repeats] + _RIVAL_LOGITS[rivals]
    if is_later and support == FIELD_BEGINS:
        logit += _LATER_FIELD_LOGIT
    else:
        logit += _SUPPORT_LOGITS[support]
    logit += in_corpus * _CORPUS_LOGIT + shifts[_class_of(evidence)]
    return 1.0 / (1.0 + math.exp(-logit))


@compiled
def learn(evidence: int, shifts: Reals, hit: bool) -> None:
    """Take into account whether a group held the token that was committed."""
    group_class = _class_of(evidence)
    error = hit - hit_rate(evidence, shifts)
    shifted = shifts[group_class] + _LEARNING_RATES[group_class] * error
    shifts[group_class] = min(max(shifted, -_MAX_SHIFT), _MAX_SHIFT)


@compiled
def _parts(evidence: int) -> tuple[int, int, int, int]:
    in_corpus = evidence // IN_CORPUS
    is_later = evidence // LATER % 2
    bucket = evidence % LATER // _PER_BUCKET
    return in_corpus, is_later, bucket, evidence % _PER_BUCKET


@compiled
def _class_of(evidence: int) -> int:
    in_corpus, is_later, bucket, rest = _parts(evidence)
    if rest % NUM_SUPPORTS == FIELD_BEGINS:
        return _LATER_FIELD_CLASS if is_later else _FIELD_CLASS
    return _CORPUS_CLASS + _CLASSES[bucket] if in_corpus else _CLASSES[bucket]
