"""Reads a suffix index context by context, for comparisons with a plain search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draft_service.suffix_blocks import NUM_LISTED, list_at, num_slots, target_of
from draft_service.suffix_compiled import Integers, compiled_entry
from draft_service.suffix_index import SuffixIndex
from draft_service.suffix_states import (
    COUNT,
    ENTRY_SIZE,
    ENTRY_TOKEN,
    NO_TOKEN,
    NOWHERE,
    ROOT_STATE,
    STATE_SIZE,
    STATES_AT,
    Memory,
    num_followers,
)


@compiled_entry
def _state_after(memory: Memory, token_ids: Integers) -> int:
    state = ROOT_STATE
    for token_id in token_ids:
        if state != NOWHERE:
            state = target_of(memory, state, token_id)
    return state


@compiled_entry
def _list_of(memory: Memory, state: int) -> tuple[int, int, int]:
    number = num_followers(memory, state)
    return list_at(memory, state), number, num_slots(number)


def count_of(index: SuffixIndex, context: Sequence[int]) -> int:
    """Return how often a context has occurred; it holds at least one token."""
    state = _state_after(index.memory, np.array(context, np.int32))
    if state == NOWHERE:
        return 0
    return int(index.memory[int(index.memory[STATES_AT]) + state * STATE_SIZE + COUNT])


def followers_of(index: SuffixIndex, context: Sequence[int]) -> list[int]:
    """Return the distinct tokens that followed a context, those that are listed first."""
    state = _state_after(index.memory, np.array(context, np.int32))
    if state == NOWHERE:
        return []
    start, number, slots = _list_of(index.memory, state)
    table = start + NUM_LISTED * ENTRY_SIZE
    listed = _tokens(index, start, min(number, NUM_LISTED))
    tabled = [token_id for token_id in _tokens(index, table, slots) if token_id != NO_TOKEN]
    assert set(listed) <= set(tabled or listed)
    assert len(tabled or listed) == number
    return listed + [token_id for token_id in tabled if token_id not in listed]


def _tokens(index: SuffixIndex, start: int, number: int) -> list[int]:
    entries = index.memory[start : start + number * ENTRY_SIZE]
    return [int(token_id) for token_id in entries[ENTRY_TOKEN::ENTRY_SIZE]]
