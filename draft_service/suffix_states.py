"""
A suffix automaton in arrays: its states, and which tokens followed them.

A state stands for contexts (strings of tokens) that end at the same positions of the text; its
suffix link leads to the longest shorter context that occurs elsewhere too. What an automaton costs
is cache misses, so that a state is half a cache line, never across two, and holds up to two
followers itself; most have no more. The followers of others lie in ``suffix_blocks``.
How the automaton grows is in ``suffix_extension``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from draft_service.suffix_compiled import Integers, compiled

Memory: TypeAlias = Integers
"""Header, text, states and blocks of one automaton, in one array: passing several ones to
each compiled function costs more than what the function does. ``SuffixIndex`` owns it."""

ROOT_STATE: Final = 0
"""The empty context."""
NOWHERE: Final = -1
"""No state, no entry, no position."""
SEPARATOR: Final = -1
"""Stands between two texts; equals no token id."""

TEXT_AT: Final = 0
"""Header: where the tokens of the text start, separators included."""
STATES_AT: Final = 1
BLOCKS_AT: Final = 2
"""Header: where the blocks of followers start; they end with the memory."""
NUM_TOKENS: Final = 3
NUM_STATES: Final = 4
BLOCKS_SIZE: Final = 5
"""Header: how much of the blocks' part is in use."""
WANTED_SIZE: Final = 6
"""Header: how much may be in use once the next token is in, when that was asked for last."""
SPARE_BLOCK: Final = 7
"""Header: a smallest block that a larger one has left free, or ``NOWHERE``."""
LAST: Final = 8
"""Header: the state of everything since the last separator."""
CONTEXT: Final = 9
"""Header: the state of the longest latest context that has occurred before."""
EARLIER_END: Final = 10
"""Header: where that context's latest earlier occurrence ends."""
HEADER_SIZE: Final = 16

LENGTH: Final = 0
"""State: the length of its longest context."""
LINK: Final = 1
COUNT: Final = 2
"""State: how often its contexts have occurred."""
END: Final = 3
"""State: the position of the last token of its latest occurrence."""
FOLLOWERS: Final = 4
"""State: two entries, the latest used first; the first is without a token, or without use if its
token is ``SEVERAL``."""
STATE_SIZE: Final = 8

ENTRY_TOKEN: Final = 0
ENTRY_TARGET: Final = 1
"""Entry: the state after its token."""
ENTRY_SIZE: Final = 2
NO_TOKEN: Final = -1
SEVERAL: Final = -2
"""More than two tokens followed: the first entry's target is the block, the second one's how many
they are, and the second one's token is ``NO_TOKEN``."""
BLOCK: Final = FOLLOWERS + ENTRY_TARGET
NUM_FOLLOWERS: Final = FOLLOWERS + ENTRY_SIZE + ENTRY_TARGET


@compiled
def state_at(memory: Memory, state: int) -> int:
    """Return where the fields of a state start."""
    return memory[STATES_AT] + state * STATE_SIZE


@compiled
def num_followers(memory: Memory, state: int) -> int:
    """Return how many tokens have followed a state."""
    entries = state_at(memory, state) + FOLLOWERS
    first = memory[entries + ENTRY_TOKEN]
    if first == SEVERAL:
        return memory[entries + ENTRY_SIZE + ENTRY_TARGET]
    return int(first != NO_TOKEN) + int(memory[entries + ENTRY_SIZE + ENTRY_TOKEN] != NO_TOKEN)
