"""
How a suffix automaton grows by one token at a time (Blumer et al. 1985), with counts.

Appending a token costs constant time on average. Three things are kept beyond the textbook: how
often each context has occurred, where it occurred last, and which follower was used last.
"""

from __future__ import annotations

from typing import Final

from draft_service.suffix_blocks import (
    add_follower,
    change_target,
    copy_followers,
    size_to_add,
    size_to_copy,
    target_of,
    use_follower,
)
from draft_service.suffix_compiled import Integers, compiled, compiled_entry, prefetch
from draft_service.suffix_states import (
    BLOCKS_AT,
    BLOCKS_SIZE,
    CONTEXT,
    COUNT,
    EARLIER_END,
    END,
    ENTRY_SIZE,
    ENTRY_TOKEN,
    FOLLOWERS,
    LAST,
    LENGTH,
    LINK,
    NO_TOKEN,
    NOWHERE,
    NUM_STATES,
    NUM_TOKENS,
    ROOT_STATE,
    STATE_SIZE,
    STATES_AT,
    TEXT_AT,
    WANTED_SIZE,
    Memory,
    state_at,
)

MAX_COUNTED: Final = 48
"""Contexts that one token updates, the longest first. Text has about five that nest; only one that
repeats in itself has more, and there the shortest contexts miss some counts."""

USES_NOTED: Final = 4
"""Of so many tokens one is put first among the followers: each costs a cache miss per context, and
the lists, of which the drafter reads the beginnings, need not be in exact order."""


@compiled
def has_room(memory: Memory, token_id: int) -> bool:
    """Return whether a token can be appended to the memory as it is."""
    memory[WANTED_SIZE] = memory[BLOCKS_SIZE]
    if memory[TEXT_AT] + memory[NUM_TOKENS] + 1 > memory[STATES_AT]:
        return False
    if memory[STATES_AT] + (memory[NUM_STATES] + 2) * STATE_SIZE > memory[BLOCKS_AT]:
        return False
    memory[WANTED_SIZE] += _size_for(memory, token_id)
    return memory[BLOCKS_AT] + memory[WANTED_SIZE] <= len(memory)


@compiled
def _size_for(memory: Memory, token_id: int) -> int:
    needed, state = 0, memory[LAST]
    target = target_of(memory, state, token_id)
    while target == NOWHERE:
        needed += size_to_add(memory, state)
        state = memory[state_at(memory, state) + LINK]
        if state == NOWHERE:
            return needed
        prefetch(memory, state_at(memory, memory[state_at(memory, state) + LINK]))
        target = target_of(memory, state, token_id)
    if _length(memory, target) != _length(memory, state) + 1:
        needed += size_to_copy(memory, target)
    return needed


@compiled
def _length(memory: Memory, state: int) -> int:
    return memory[state_at(memory, state) + LENGTH]


@compiled
def append(memory: Memory, token_id: int) -> None:
    """Append a token, for which there must be room."""
    position, last = memory[NUM_TOKENS], memory[LAST]
    memory[memory[TEXT_AT] + position] = token_id
    memory[NUM_TOKENS] += 1
    target = target_of(memory, last, token_id)
    if target == NOWHERE:
        target = _new_context(memory, last, token_id)
    elif _length(memory, target) != _length(memory, last) + 1:
        target = _split(memory, last, token_id, target)
    fields = state_at(memory, target)
    known = target if memory[fields + COUNT] > 0 else memory[fields + LINK]
    memory[CONTEXT] = known
    memory[EARLIER_END] = memory[state_at(memory, known) + END]
    memory[LAST] = target
    if position % USES_NOTED == 0:
        _note_use(memory, last, token_id)
    _count(memory, target, position)


@compiled_entry
def append_all(memory: Memory, token_ids: Integers, start: int) -> int:
    """Append tokens from the given one on for as long as there is room; return where it ended."""
    for index in range(start, len(token_ids)):
        if not has_room(memory, token_ids[index]):
            return index
        append(memory, token_ids[index])
    return len(token_ids)


@compiled
def _new_state(memory: Memory, length: int) -> int:
    state = memory[NUM_STATES]
    memory[NUM_STATES] += 1
    fields = state_at(memory, state)
    memory[fields + LENGTH] = length
    memory[fields + LINK] = ROOT_STATE
    memory[fields + FOLLOWERS + ENTRY_TOKEN] = NO_TOKEN
    memory[fields + FOLLOWERS + ENTRY_SIZE + ENTRY_TOKEN] = NO_TOKEN
    return state


@compiled
def _new_context(memory: Memory, last: int, token_id: int) -> int:
    new = _new_state(memory, _length(memory, last) + 1)
    state, target = last, NOWHERE
    while target == NOWHERE:
        add_follower(memory, state, token_id, new)
        state = memory[state_at(memory, state) + LINK]
        if state == NOWHERE:
            return new
        target = target_of(memory, state, token_id)
    if _length(memory, target) != _length(memory, state) + 1:
        target = _split(memory, state, token_id, target)
    memory[state_at(memory, new) + LINK] = target
    return new


@compiled
def _split(memory: Memory, state: int, token_id: int, target: int) -> int:
    """Return a new state for those contexts of ``target`` that occur more often than the others."""
    new = _new_state(memory, _length(memory, state) + 1)
    fields, target_fields = state_at(memory, new), state_at(memory, target)
    memory[fields + LINK] = memory[target_fields + LINK]
    memory[fields + COUNT] = memory[target_fields + COUNT]
    memory[fields + END] = memory[target_fields + END]
    copy_followers(memory, target, new)
    memory[target_fields + LINK] = new
    while state != NOWHERE and target_of(memory, state, token_id) == target:
        change_target(memory, state, token_id, new)
        state = memory[state_at(memory, state) + LINK]
    return new


@compiled
def _note_use(memory: Memory, state: int, token_id: int) -> None:
    for _ in range(MAX_COUNTED):
        if state == NOWHERE:
            return
        use_follower(memory, state, token_id)
        state = memory[state_at(memory, state) + LINK]


@compiled
def _count(memory: Memory, state: int, position: int) -> None:
    """Count an occurrence of all contexts that end at the new token; note it as the latest."""
    for _ in range(MAX_COUNTED):
        if state == ROOT_STATE:
            return
        fields = state_at(memory, state)
        memory[fields + COUNT] += 1
        memory[fields + END] = position
        state = memory[fields + LINK]
