"""
A suffix automaton in arrays: its states, what follows them, and how that is looked up and changed.

A state stands for contexts (strings of tokens) that end at the same positions of the text; its
suffix link leads to the longest shorter context that occurs elsewhere too. Most states have been
followed by one token only, which the state itself holds; the followers of the others are edges, in
one hash table to be found and in a list per state, the latest used first, to be enumerated.
How the automaton grows is in ``suffix_extension``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from draft_service.suffix_compiled import Integers, compiled, compiled_entry

Memory: TypeAlias = Integers
"""Header, text, states, edges and table of one automaton, in one array: passing several ones to
each compiled function costs more than what the function does. ``SuffixIndex`` owns it."""

ROOT_STATE: Final = 0
"""The empty context."""
NOWHERE: Final = -1
"""No state, no edge, no position."""
SEPARATOR: Final = -1
"""Stands between two texts; equals no token id."""

TEXT_AT: Final = 0
"""Header: where the tokens of the text start, separators included."""
STATES_AT: Final = 1
EDGES_AT: Final = 2
TABLE_AT: Final = 3
"""Header: where the hash table of the edges starts; it ends with the memory."""
TABLE_MASK: Final = 4
"""Header: the slots of the table, a power of two, less one."""
NUM_TOKENS: Final = 5
NUM_STATES: Final = 6
NUM_EDGES: Final = 7
"""Header: edges in use, and the unused edge 0."""
WANTED_EDGES: Final = 8
"""Header: edges in use once the next token is in, when that was asked for last."""
LAST: Final = 9
"""Header: the state of everything since the last separator."""
CONTEXT: Final = 10
"""Header: the state of the longest latest context that has occurred before."""
EARLIER_END: Final = 11
"""Header: where that context's latest earlier occurrence ends."""
HEADER_SIZE: Final = 16

LENGTH: Final = 0
"""State: the length of its longest context."""
LINK: Final = 1
COUNT: Final = 2
"""State: how often its contexts have occurred."""
END: Final = 3
"""State: the position of the last token of its latest occurrence."""
TOKEN: Final = 4
"""State: the only token that followed, or ``NO_TOKEN``, or ``SEVERAL``."""
TARGET: Final = 5
"""State: the state after ``TOKEN``; with several tokens, the first edge of its list."""
STATE_SIZE: Final = 6
NO_TOKEN: Final = -1
SEVERAL: Final = -2

EDGE_STATE: Final = 0
EDGE_TOKEN: Final = 1
EDGE_TARGET: Final = 2
EDGE_NEXT: Final = 3
EDGE_PREVIOUS: Final = 4
EDGE_SIZE: Final = 5
NO_EDGE: Final = 0
"""An empty slot of the table, the end of a list."""

_MULTIPLIER: Final = -7046029254386353131


@compiled
def state_at(memory: Memory, state: int) -> int:
    """Return where the fields of a state start."""
    return memory[STATES_AT] + state * STATE_SIZE


@compiled
def edge_at(memory: Memory, edge: int) -> int:
    """Return where the fields of an edge start."""
    return memory[EDGES_AT] + edge * EDGE_SIZE


@compiled
def slot_of(memory: Memory, state: int, token_id: int) -> int:
    """Return where in the table the edge is, or the empty slot where it belongs."""
    mask, table = memory[TABLE_MASK], memory[TABLE_AT]
    mixed = ((state << 31) ^ token_id) * _MULTIPLIER
    slot = (mixed ^ (mixed >> 32)) & mask
    while True:
        edge = memory[table + slot]
        if edge == NO_EDGE:
            return table + slot
        fields = edge_at(memory, edge)
        if memory[fields + EDGE_TOKEN] == token_id and memory[fields + EDGE_STATE] == state:
            return table + slot
        slot = (slot + 1) & mask


@compiled
def target_of(memory: Memory, state: int, token_id: int) -> int:
    """Return the state after a token, or ``NOWHERE``."""
    fields = state_at(memory, state)
    only = memory[fields + TOKEN]
    if only == token_id:
        return memory[fields + TARGET]
    if only != SEVERAL:
        return NOWHERE
    edge = memory[slot_of(memory, state, token_id)]
    return NOWHERE if edge == NO_EDGE else memory[edge_at(memory, edge) + EDGE_TARGET]


@compiled
def num_edges_to_add(memory: Memory, state: int) -> int:
    """Return how many edges one more follower of a state takes."""
    only = memory[state_at(memory, state) + TOKEN]
    if only == NO_TOKEN:
        return 0
    return 1 if only == SEVERAL else 2


@compiled
def num_edges_of(memory: Memory, state: int) -> int:
    """Return how many edges a state has; none if it has one follower or no follower."""
    fields = state_at(memory, state)
    if memory[fields + TOKEN] != SEVERAL:
        return 0
    number, edge = 0, memory[fields + TARGET]
    while edge != NO_EDGE:
        number += 1
        edge = memory[edge_at(memory, edge) + EDGE_NEXT]
    return number


@compiled
def add_follower(memory: Memory, state: int, token_id: int, target: int) -> None:
    """Let a state lead on by a token that has not followed it yet; the edges must have room."""
    fields = state_at(memory, state)
    only = memory[fields + TOKEN]
    if only == NO_TOKEN:
        memory[fields + TOKEN] = token_id
        memory[fields + TARGET] = target
        return
    if only != SEVERAL:
        former_target = memory[fields + TARGET]
        memory[fields + TOKEN] = SEVERAL
        memory[fields + TARGET] = NO_EDGE
        add_edge(memory, state, only, former_target)
    add_edge(memory, state, token_id, target)


@compiled
def add_edge(memory: Memory, state: int, token_id: int, target: int) -> None:
    """Give a state that has several followers one more."""
    edge = memory[NUM_EDGES]
    memory[NUM_EDGES] += 1
    memory[slot_of(memory, state, token_id)] = edge
    fields = edge_at(memory, edge)
    memory[fields + EDGE_STATE] = state
    memory[fields + EDGE_TOKEN] = token_id
    memory[fields + EDGE_TARGET] = target
    put_first(memory, state, edge)


@compiled
def put_first(memory: Memory, state: int, edge: int) -> None:
    """Put an edge that is in no list first in the list of its state."""
    fields, edge_fields = state_at(memory, state), edge_at(memory, edge)
    first = memory[fields + TARGET]
    memory[edge_fields + EDGE_PREVIOUS] = NO_EDGE
    memory[edge_fields + EDGE_NEXT] = first
    if first != NO_EDGE:
        memory[edge_at(memory, first) + EDGE_PREVIOUS] = edge
    memory[fields + TARGET] = edge


@compiled
def change_target(memory: Memory, state: int, token_id: int, target: int) -> None:
    """Let a state lead on to another state by a token that has followed it."""
    fields = state_at(memory, state)
    if memory[fields + TOKEN] == token_id:
        memory[fields + TARGET] = target
    else:
        edge = memory[slot_of(memory, state, token_id)]
        memory[edge_at(memory, edge) + EDGE_TARGET] = target


@compiled
def use_follower(memory: Memory, state: int, token_id: int) -> None:
    """Put a token that has followed a state again first in its list."""
    fields = state_at(memory, state)
    if memory[fields + TOKEN] != SEVERAL:
        return
    edge = memory[slot_of(memory, state, token_id)]
    edge_fields = edge_at(memory, edge)
    before, after = memory[edge_fields + EDGE_PREVIOUS], memory[edge_fields + EDGE_NEXT]
    if before == NO_EDGE:
        return
    memory[edge_at(memory, before) + EDGE_NEXT] = after
    if after != NO_EDGE:
        memory[edge_at(memory, after) + EDGE_PREVIOUS] = before
    put_first(memory, state, edge)


@compiled
def copy_followers(memory: Memory, source: int, state: int) -> None:
    """Give a state without followers those of another one, in the same order."""
    fields, source_fields = state_at(memory, state), state_at(memory, source)
    memory[fields + TOKEN] = memory[source_fields + TOKEN]
    edge = memory[source_fields + TARGET]
    if memory[source_fields + TOKEN] != SEVERAL:
        memory[fields + TARGET] = edge
        return
    memory[fields + TARGET] = NO_EDGE
    while memory[edge_at(memory, edge) + EDGE_NEXT] != NO_EDGE:
        edge = memory[edge_at(memory, edge) + EDGE_NEXT]
    while edge != NO_EDGE:
        edge_fields = edge_at(memory, edge)
        token_id, target = memory[edge_fields + EDGE_TOKEN], memory[edge_fields + EDGE_TARGET]
        add_edge(memory, state, token_id, target)
        edge = memory[edge_fields + EDGE_PREVIOUS]


@compiled_entry
def fill_table(memory: Memory) -> None:
    """Enter all edges into a table that is empty."""
    for edge in range(NO_EDGE + 1, memory[NUM_EDGES]):
        fields = edge_at(memory, edge)
        slot = slot_of(memory, memory[fields + EDGE_STATE], memory[fields + EDGE_TOKEN])
        memory[slot] = edge
