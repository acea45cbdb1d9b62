"""
Where in the text a copied passage stands, and where it may go on after a difference.

An edited copy differs here and there from its source: a name replaced, a line put in or left out.
Right after the difference no context has occurred before, but the source is still the best guess.
Once the copy has gone on, its passage is a better guess than other occurrences of the same words.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from draft_service.suffix_compiled import compiled
from draft_service.suffix_fields import field_end
from draft_service.suffix_record import (
    FIELD_AT,
    FIELD_END,
    FIELD_LENGTH,
    MAX_RESUMED,
    NUM_AGREED,
    NUM_DIFFERENT,
    NUM_RESUMED,
    POSITION,
    RESUMED_AT,
    RESUMED_HOW,
    Record,
)
from draft_service.suffix_states import (
    CONTEXT,
    EARLIER_END,
    LENGTH,
    NOWHERE,
    NUM_TOKENS,
    SEPARATOR,
    TEXT_AT,
    Memory,
    state_at,
)

_MIN_COPY_LENGTH: Final = 6
"""Shorter matches happen by chance; a copy is what matches by this many tokens."""
_MIN_NEARBY_LENGTH: Final = 2
"""Near to where the copy should go on, this length is enough."""
_MAX_NEARBY_LENGTH: Final = 16
_MAX_DIFFERENT: Final = 12
"""After so many tokens that are not in the source the copy has ended."""
_MAX_GAP: Final = 24
"""The copy may leave out so many tokens of its source."""
_MAX_LEFT_OUT: Final = 4
"""So many may be left out within a field that is copied but for them."""


class Resumption(IntEnum):
    """In which way a copy goes on after a difference."""

    AFTER_GAP = 0
    """Behind the source's next occurrence of the latest token: something was left out."""
    AFTER_ONE = 1
    """Behind one source token: it was replaced by the different ones."""
    IN_PLACE = 2
    """Where the copy stopped: the different ones were put in."""
    AT_FIELD_END = 3
    """Where the field of the record before ends, which is shorter or longer than this one is."""
    AT_FIELD_LENGTH = 4
    """Where it ends, once this one has as many tokens; see ``suffix_fields``. Until then the
    position lies as far before the end as tokens are missing, whatever they are."""


_AFTER_GAP: Final = int(Resumption.AFTER_GAP)
_AFTER_ONE: Final = int(Resumption.AFTER_ONE)
_IN_PLACE: Final = int(Resumption.IN_PLACE)
AT_FIELD_END: Final = int(Resumption.AT_FIELD_END)
_AT_FIELD_LENGTH: Final = int(Resumption.AT_FIELD_LENGTH)


@compiled
def text_token(memory: Memory, position: int) -> int:
    """Return the token at a position of the text; a separator behind its end."""
    if position >= memory[NUM_TOKENS]:
        return SEPARATOR
    return memory[memory[TEXT_AT] + position]


@compiled
def advance(record: Record, memory: Memory, token_id: int) -> None:
    """Take note of a token that is about to be appended to the text."""
    position = record[POSITION]
    if position == NOWHERE:
        return
    if record[NUM_DIFFERENT] == 0 and text_token(memory, position) == token_id:
        record[POSITION] += 1
        record[NUM_AGREED] += 1
    else:
        record[NUM_DIFFERENT] += 1
        record[NUM_AGREED] = 0
    if record[NUM_DIFFERENT] > _MAX_DIFFERENT or record[POSITION] >= memory[NUM_TOKENS]:
        record[POSITION] = NOWHERE


@compiled
def join(record: Record, memory: Memory) -> None:
    """Take up the copy that the latest tokens show."""
    length = memory[state_at(memory, memory[CONTEXT]) + LENGTH]
    if record[POSITION] != NOWHERE and record[NUM_DIFFERENT] > 0:
        _rejoin_nearby(record, memory)
    if length >= _MIN_COPY_LENGTH and _is_better(record, length):
        record[POSITION] = memory[EARLIER_END] + 1
        record[NUM_DIFFERENT] = 0
        record[NUM_AGREED] = length


@compiled
def _is_better(record: Record, length: int) -> bool:
    if record[POSITION] == NOWHERE or record[NUM_DIFFERENT] > 0:
        return True
    return length > 2 * record[NUM_AGREED] + _MIN_COPY_LENGTH


@compiled
def _rejoin_nearby(record: Record, memory: Memory) -> None:
    best_length, best_position = 0, NOWHERE
    for position in range(record[POSITION], record[POSITION] + _MAX_GAP + 1):
        length = _matching_length(memory, position)
        if length > best_length:
            best_length, best_position = length, position
    if best_length >= _MIN_NEARBY_LENGTH:
        record[POSITION] = best_position
        record[NUM_DIFFERENT] = 0
        record[NUM_AGREED] = best_length


@compiled
def _matching_length(memory: Memory, position: int) -> int:
    """Return how many of the latest tokens also stand right before a position."""
    text, end = memory[TEXT_AT], memory[NUM_TOKENS]
    longest = min(_MAX_NEARBY_LENGTH, position)
    if position >= end:
        return 0
    length = 0
    while length < longest:
        token_id = memory[text + end - 1 - length]
        if token_id == SEPARATOR or memory[text + position - 1 - length] != token_id:
            break
        length += 1
    return length


@compiled
def find_resumptions(record: Record, memory: Memory) -> None:
    """Note at which positions the copy, or the record, may go on, the likeliest first."""
    record[NUM_RESUMED] = 0
    position, end = record[POSITION], field_end(record, memory)
    goes_first = end != NOWHERE and _goes_first(record, memory, position, end)
    if goes_first:
        _find_field_end(record, end)
    if position != NOWHERE:
        _find_copied(record, memory, position)
    if end != NOWHERE and not goes_first:
        _find_field_end(record, end)


@compiled
def _goes_first(record: Record, memory: Memory, position: int, end: int) -> bool:
    """Return whether a field's end is likelier than that its copy goes on at a position."""
    if position == NOWHERE or record[NUM_DIFFERENT] == 0:
        # The field alone is copied: what follows it there does not follow it here.
        return record[NUM_AGREED] <= record[FIELD_LENGTH]
    if record[NUM_DIFFERENT] < record[FIELD_LENGTH]:
        return False
    return _behind_latest(memory, position, min(position + _MAX_LEFT_OUT, end)) == NOWHERE


@compiled
def resumed_depth(record: Record, number: int, depth: int) -> int:
    """Return how many tokens of a resumption a path of some depth holds; below 0: it waits."""
    if record[RESUMED_HOW + number] < AT_FIELD_END:
        return depth
    return record[RESUMED_AT + number] + depth - record[FIELD_END]


@compiled
def _find_field_end(record: Record, end: int) -> None:
    as_long = record[FIELD_AT] + record[FIELD_LENGTH]
    if as_long <= end:
        _note(record, as_long, _AT_FIELD_LENGTH)
    if as_long != end:
        _note(record, end, AT_FIELD_END)


@compiled
def _find_copied(record: Record, memory: Memory, position: int) -> None:
    if record[NUM_DIFFERENT] == 0:
        _note(record, position, _IN_PLACE)
        return
    last = min(position + _MAX_GAP, memory[NUM_TOKENS] - 1)
    behind_gap = _behind_latest(memory, position, last)
    if behind_gap != NOWHERE:
        _note(record, behind_gap, _AFTER_GAP)
    _note(record, position + 1, _AFTER_ONE)
    _note(record, position, _IN_PLACE)


@compiled
def _behind_latest(memory: Memory, first: int, last: int) -> int:
    """Return the position behind the next occurrence of the latest token, or ``NOWHERE``."""
    latest = text_token(memory, memory[NUM_TOKENS] - 1)
    for position in range(first, last):
        if text_token(memory, position) == latest:
            return position + 1
    return NOWHERE


@compiled
def _note(record: Record, position: int, how: int) -> None:
    number = record[NUM_RESUMED]
    if number < MAX_RESUMED:
        record[RESUMED_AT + number] = position
        record[RESUMED_HOW + number] = how
        record[NUM_RESUMED] += 1
