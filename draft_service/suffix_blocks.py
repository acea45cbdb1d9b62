"""
What follows the states of a suffix automaton: how it is listed, looked up and changed.

Followers are entries of a token and a target, side by side, so that one or two cache lines hold
what a drafter reads. Up to two are in the state itself, up to ``NUM_LISTED`` in a block of a cache
line. A block of more lists those used last and has a hash table of all behind them. A block that
has become too small is left behind: all of them together are smaller than those in use.
"""

from __future__ import annotations

from typing import Final

from draft_service.suffix_compiled import compiled
from draft_service.suffix_states import (
    BLOCK,
    BLOCKS_AT,
    BLOCKS_SIZE,
    ENTRY_SIZE,
    ENTRY_TARGET,
    ENTRY_TOKEN,
    FOLLOWERS,
    NO_TOKEN,
    NOWHERE,
    NUM_FOLLOWERS,
    SEVERAL,
    SPARE_BLOCK,
    Memory,
    num_followers,
    state_at,
)

NUM_LISTED: Final = 8
"""Followers of a state that can be enumerated, those used last."""
_NUM_IN_STATE: Final = 2
_SMALL: Final = 4
_SMALL_SIZE: Final = _SMALL * ENTRY_SIZE
_LIST_SIZE: Final = NUM_LISTED * ENTRY_SIZE
"""A cache line; larger blocks start with one."""
_FEWEST_SLOTS: Final = 16
_MULTIPLIER: Final = 2_654_435_761
_SHIFT: Final = 12


@compiled
def list_at(memory: Memory, state: int) -> int:
    """Return where the entries of the followers used last start, the latest one first."""
    fields = state_at(memory, state)
    if memory[fields + FOLLOWERS + ENTRY_TOKEN] == SEVERAL:
        return memory[BLOCKS_AT] + memory[fields + BLOCK]
    return fields + FOLLOWERS


@compiled
def num_slots(number: int) -> int:
    """Return how many slots the table of so many followers has; up to ``NUM_LISTED`` need none."""
    if number <= NUM_LISTED:
        return 0
    slots = _FEWEST_SLOTS
    while slots * 3 < number * 4:
        slots *= 2
    return slots


@compiled
def _block_size(number: int) -> int:
    """Return the size of the block of a state with so many followers."""
    if number <= _NUM_IN_STATE:
        return 0
    if number <= _SMALL:
        return _SMALL_SIZE
    return _LIST_SIZE + num_slots(number) * ENTRY_SIZE


@compiled
def size_to_add(memory: Memory, state: int) -> int:
    """Return what one more follower of a state takes of the blocks' part at most."""
    number = num_followers(memory, state)
    if _block_size(number + 1) == _block_size(number):
        return 0
    return _block_size(number + 1) + _SMALL_SIZE


@compiled
def size_to_copy(memory: Memory, state: int) -> int:
    """
    Return what a copy of a state's followers takes of the blocks' part at most.

    The token that has it copied may follow it first: after a separator it may be the latest state.
    """
    return _block_size(num_followers(memory, state) + 1) + _SMALL_SIZE


@compiled
def _slot_of(memory: Memory, block: int, number: int, token_id: int) -> int:
    """Return where in a block's table the entry of a token is, or the empty slot for it."""
    mask, table = num_slots(number) - 1, block + _LIST_SIZE
    slot = ((token_id * _MULTIPLIER) >> _SHIFT) & mask
    while True:
        at = table + slot * ENTRY_SIZE
        found = memory[at + ENTRY_TOKEN]
        if found == token_id:
            return at
        if found == NO_TOKEN:
            return at
        slot = (slot + 1) & mask


@compiled
def _listed(memory: Memory, start: int, number: int, token_id: int) -> int:
    """Return where the entry of a token is among so many, or ``NOWHERE``."""
    for at in range(start, start + number * ENTRY_SIZE, ENTRY_SIZE):
        if memory[at + ENTRY_TOKEN] == token_id:
            return at
    return NOWHERE


@compiled
def _entry_of(memory: Memory, state: int, token_id: int) -> int:
    """Return where the entry of a follower is, or ``NOWHERE``."""
    entries = state_at(memory, state) + FOLLOWERS
    if memory[entries + ENTRY_TOKEN] != SEVERAL:
        return _listed(memory, entries, _NUM_IN_STATE, token_id)
    block = memory[BLOCKS_AT] + memory[entries + ENTRY_TARGET]
    number = memory[entries + ENTRY_SIZE + ENTRY_TARGET]
    listed = _listed(memory, block, min(number, NUM_LISTED), token_id)
    if number <= NUM_LISTED or listed != NOWHERE:
        return listed
    slot = _slot_of(memory, block, number, token_id)
    return slot if memory[slot + ENTRY_TOKEN] == token_id else NOWHERE


@compiled
def target_of(memory: Memory, state: int, token_id: int) -> int:
    """Return the state after a token, or ``NOWHERE``."""
    entry = _entry_of(memory, state, token_id)
    return NOWHERE if entry == NOWHERE else memory[entry + ENTRY_TARGET]


@compiled
def change_target(memory: Memory, state: int, token_id: int, target: int) -> None:
    """Let a state lead on to another state by a token that has followed it."""
    memory[_entry_of(memory, state, token_id) + ENTRY_TARGET] = target
    number = num_followers(memory, state)
    if number > NUM_LISTED:
        slot = _slot_of(memory, list_at(memory, state), number, token_id)
        memory[slot + ENTRY_TARGET] = target


@compiled
def add_follower(memory: Memory, state: int, token_id: int, target: int) -> None:
    """Let a state lead on by a token that has not followed it yet; the blocks must have room."""
    number = num_followers(memory, state)
    if _block_size(number + 1) != _block_size(number):
        _enlarge(memory, state, number)
    start = list_at(memory, state)
    if number >= NUM_LISTED:
        _write(memory, _slot_of(memory, start, number + 1, token_id), token_id, target)
    _put_first(memory, start, min(number, NUM_LISTED - 1), token_id, target)
    if number >= _NUM_IN_STATE:
        memory[state_at(memory, state) + NUM_FOLLOWERS] = number + 1


@compiled
def use_follower(memory: Memory, state: int, token_id: int) -> None:
    """Put a token that has followed a state again first among those used last."""
    start = list_at(memory, state)
    if memory[start + ENTRY_TOKEN] == token_id:
        return
    entry = _entry_of(memory, state, token_id)
    target = memory[entry + ENTRY_TARGET]
    number = min(num_followers(memory, state), NUM_LISTED)
    listed = _listed(memory, start, number, token_id)
    place = number - 1 if listed == NOWHERE else (listed - start) // ENTRY_SIZE
    _put_first(memory, start, place, token_id, target)


@compiled
def copy_followers(memory: Memory, source: int, state: int) -> None:
    """Give a state without followers those of another one, in the same order."""
    entries = state_at(memory, state) + FOLLOWERS
    source_entries = state_at(memory, source) + FOLLOWERS
    for field in range(_NUM_IN_STATE * ENTRY_SIZE):
        memory[entries + field] = memory[source_entries + field]
    size = _block_size(num_followers(memory, source))
    if size:
        former = list_at(memory, source)
        memory[entries + ENTRY_TARGET] = block = _new_block(memory, size)
        start = memory[BLOCKS_AT] + block
        for field in range(size):
            memory[start + field] = memory[former + field]


@compiled
def _write(memory: Memory, entry: int, token_id: int, target: int) -> None:
    memory[entry + ENTRY_TOKEN] = token_id
    memory[entry + ENTRY_TARGET] = target


@compiled
def _put_first(memory: Memory, start: int, place: int, token_id: int, target: int) -> None:
    """Let an entry be the first of a list; those before the given place move on by one."""
    for at in range(start + place * ENTRY_SIZE, start, -ENTRY_SIZE):
        before = at - ENTRY_SIZE
        _write(memory, at, memory[before + ENTRY_TOKEN], memory[before + ENTRY_TARGET])
    _write(memory, start, token_id, target)


@compiled
def _new_block(memory: Memory, size: int) -> int:
    """Return where in the blocks' part a new block starts: no list is across two cache lines."""
    spare, block = memory[SPARE_BLOCK], memory[BLOCKS_SIZE]
    if size == _SMALL_SIZE and spare != NOWHERE:
        memory[SPARE_BLOCK] = NOWHERE
        return spare
    if size > _SMALL_SIZE and block % _LIST_SIZE:
        memory[SPARE_BLOCK] = block
        block += _SMALL_SIZE
    memory[BLOCKS_SIZE] = block + size
    return block


@compiled
def _enlarge(memory: Memory, state: int, number: int) -> None:
    """Move the followers of a state to a block for one more."""
    former = list_at(memory, state)
    fields = state_at(memory, state)
    block = _new_block(memory, _block_size(number + 1))
    start = memory[BLOCKS_AT] + block
    for field in range(min(number, NUM_LISTED) * ENTRY_SIZE):
        memory[start + field] = memory[former + field]
    _write(memory, fields + FOLLOWERS, SEVERAL, block)
    _write(memory, fields + FOLLOWERS + ENTRY_SIZE, NO_TOKEN, number)
    if number >= NUM_LISTED:
        _fill_table(memory, former, start, number)


@compiled
def _fill_table(memory: Memory, former: int, start: int, number: int) -> None:
    """Enter the followers of a former block into the table, for one more, of a new one."""
    table = start + _LIST_SIZE
    for slot in range(num_slots(number + 1)):
        memory[table + slot * ENTRY_SIZE + ENTRY_TOKEN] = NO_TOKEN
    first, num_entries = former, NUM_LISTED
    if number > NUM_LISTED:
        first, num_entries = former + _LIST_SIZE, num_slots(number)
    for at in range(first, first + num_entries * ENTRY_SIZE, ENTRY_SIZE):
        token_id = memory[at + ENTRY_TOKEN]
        if token_id != NO_TOKEN:
            slot_at = _slot_of(memory, start, number + 1, token_id)
            _write(memory, slot_at, token_id, memory[at + ENTRY_TARGET])
