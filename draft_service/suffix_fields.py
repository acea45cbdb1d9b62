"""
Where a field begins and ends that differs from record to record, as in JSON or in a table.

What stands before such a field has occurred before, and was followed by something else nearly each
time. Nothing that occurred before tells its value, but the record before tells how it ends: with
the next two tokens there that occur as often as the field does, and behind other values too. A
value that is copied from elsewhere, such as the text that the record is made of, ends there as
well, and not where that text goes on.
"""

from __future__ import annotations

from typing import Final

from draft_service.suffix_blocks import target_of
from draft_service.suffix_compiled import compiled
from draft_service.suffix_record import (
    FIELD_AT,
    FIELD_COUNT,
    FIELD_END,
    FIELD_LENGTH,
    NOT_SOUGHT,
    Record,
)
from draft_service.suffix_states import (
    CONTEXT,
    COUNT,
    EARLIER_END,
    LENGTH,
    LINK,
    NOWHERE,
    NUM_TOKENS,
    ROOT_STATE,
    SEPARATOR,
    TEXT_AT,
    Memory,
    num_followers,
    state_at,
)

_MIN_NAME_LENGTH: Final = 3
"""So many tokens before a field must have occurred before: its name and its punctuation."""
_MAX_SHORTER: Final = 8
_MIN_COUNT: Final = 2
"""Fields before the present one."""
_MAX_LENGTH: Final = 12


@compiled
def note_field(record: Record, memory: Memory) -> None:
    """Take note, before a token is appended, of a field that begins with it or goes on."""
    if record[FIELD_AT] != NOWHERE:
        record[FIELD_LENGTH] += 1
        if record[FIELD_LENGTH] > _MAX_LENGTH:
            record[FIELD_AT] = NOWHERE
    context = memory[CONTEXT]
    length = memory[state_at(memory, context) + LENGTH]
    num_fields = num_fields_behind(memory, context, length, 1)
    if num_fields > 0:
        record[FIELD_AT] = memory[EARLIER_END] + 1
        record[FIELD_COUNT] = num_fields
        record[FIELD_LENGTH] = 1
        record[FIELD_END] = NOT_SOUGHT


@compiled
def num_fields_behind(memory: Memory, context: int, length: int, num_open: int) -> int:
    """
    Return how many fields stood behind a context of some length, or 0 if none begins there.

    Of its occurrences ``num_open`` are not followed by anything yet.
    """
    if length < _MIN_NAME_LENGTH:
        return 0
    state = _shortest_name(memory, context)
    num_fields = memory[state_at(memory, state) + COUNT] - num_open
    if num_fields >= _MIN_COUNT and 2 * num_followers(memory, state) > num_fields:
        return num_fields
    return 0


@compiled
def field_end(record: Record, memory: Memory) -> int:
    """Return where the field of the record before ends, or ``NOWHERE`` if this one has ended."""
    if record[FIELD_AT] == NOWHERE:
        return NOWHERE
    if record[FIELD_END] == NOT_SOUGHT:
        record[FIELD_END] = _sought_end(record, memory)
    if record[FIELD_END] == NOWHERE or _has_passed(record, memory, record[FIELD_END]):
        record[FIELD_AT] = NOWHERE
        return NOWHERE
    return record[FIELD_END]


@compiled
def _sought_end(record: Record, memory: Memory) -> int:
    """Return where the field of the record before ends: each look costs some cache misses."""
    start = record[FIELD_AT]
    last = min(start + _MAX_LENGTH, memory[NUM_TOKENS] - 2)
    for position in range(start, last + 1):
        if memory[memory[TEXT_AT] + position] == SEPARATOR:
            return NOWHERE
        if position > start and _may_end(memory, position, record[FIELD_COUNT]):
            return position
    return NOWHERE


@compiled
def _may_end(memory: Memory, position: int, num_fields: int) -> bool:
    """Return whether two tokens occur as often as the field does, and not behind one value only."""
    count = _count_of(memory, position, 2)
    return count >= num_fields and _count_of(memory, position - 1, 3) < count


@compiled
def _shortest_name(memory: Memory, state: int) -> int:
    """Return the state of the context's shortest end that is long enough for a field's name."""
    for _ in range(_MAX_SHORTER):
        link = memory[state_at(memory, state) + LINK]
        if memory[state_at(memory, link) + LENGTH] < _MIN_NAME_LENGTH:
            break
        state = link
    return state


@compiled
def _count_of(memory: Memory, position: int, length: int) -> int:
    """Return how often the tokens at a position have occurred one after the other."""
    text, state = memory[TEXT_AT] + position, ROOT_STATE
    for index in range(text, text + length):
        if memory[index] == SEPARATOR:
            return 0
        state = target_of(memory, state, memory[index])
        if state == NOWHERE:
            return 0
    return memory[state_at(memory, state) + COUNT]


@compiled
def _has_passed(record: Record, memory: Memory, position: int) -> bool:
    text, end = memory[TEXT_AT], memory[TEXT_AT] + memory[NUM_TOKENS]
    for index in range(end - record[FIELD_LENGTH], end):
        if memory[index] == memory[text + position]:
            return True
    return False
