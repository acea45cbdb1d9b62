"""Reads a suffix index context by context, for comparisons with a plain search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draft_service.suffix_compiled import Integers, compiled_entry
from draft_service.suffix_index import SuffixIndex
from draft_service.suffix_states import (
    COUNT,
    EDGE_NEXT,
    EDGE_SIZE,
    EDGE_TOKEN,
    EDGES_AT,
    NO_EDGE,
    NO_TOKEN,
    NOWHERE,
    ROOT_STATE,
    SEVERAL,
    STATE_SIZE,
    STATES_AT,
    TARGET,
    TOKEN,
    Memory,
    target_of,
)


@compiled_entry
def _state_after(memory: Memory, token_ids: Integers) -> int:
    state = ROOT_STATE
    for token_id in token_ids:
        if state != NOWHERE:
            state = target_of(memory, state, token_id)
    return state


def count_of(index: SuffixIndex, context: Sequence[int]) -> int:
    """Return how often a context has occurred; it holds at least one token."""
    fields = _fields(index, context)
    return 0 if fields is None else int(index.memory[fields + COUNT])


def followers_of(index: SuffixIndex, context: Sequence[int]) -> list[int]:
    """Return the distinct tokens that followed a context, in the order of its list."""
    fields = _fields(index, context)
    if fields is None or index.memory[fields + TOKEN] == NO_TOKEN:
        return []
    if index.memory[fields + TOKEN] != SEVERAL:
        return [int(index.memory[fields + TOKEN])]
    found, edge = [], int(index.memory[fields + TARGET])
    while edge != NO_EDGE:
        edge_fields = int(index.memory[EDGES_AT]) + edge * EDGE_SIZE
        found.append(int(index.memory[edge_fields + EDGE_TOKEN]))
        edge = int(index.memory[edge_fields + EDGE_NEXT])
    return found


def _fields(index: SuffixIndex, context: Sequence[int]) -> int | None:
    state = _state_after(index.memory, np.array(context, np.int32))
    return None if state == NOWHERE else int(index.memory[STATES_AT]) + state * STATE_SIZE
