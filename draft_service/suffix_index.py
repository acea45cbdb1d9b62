"""A suffix automaton that grows: owns its memory and makes room in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draft_service.suffix_extension import append_all
from draft_service.suffix_states import (
    BLOCKS_AT,
    BLOCKS_SIZE,
    CONTEXT,
    EARLIER_END,
    END,
    ENTRY_SIZE,
    ENTRY_TOKEN,
    FOLLOWERS,
    HEADER_SIZE,
    LAST,
    LINK,
    NO_TOKEN,
    NOWHERE,
    NUM_STATES,
    NUM_TOKENS,
    ROOT_STATE,
    SEPARATOR,
    SPARE_BLOCK,
    STATE_SIZE,
    STATES_AT,
    TEXT_AT,
    WANTED_SIZE,
)

_GROWTH: Final = 1.25
"""What is full grows to this much of what is used: few copies, and little room unused."""
_STATES_PER_TOKEN: Final = 1.6
_BLOCKS_PER_TOKEN: Final = 3.0
"""Room for blocks of followers, in integers."""
_SMALLEST: Final = 256
"""Tokens for which there is room at least, so that few steps of growth are needed at first."""
_CACHE_LINE: Final = 16
"""In integers."""


class SuffixIndex:
    """The texts of one owner, one after the other, as a suffix automaton."""

    __slots__ = ("memory",)

    def __init__(self, expected_tokens: int = 0) -> None:
        num_tokens = max(expected_tokens, _SMALLEST)
        num_states = int(num_tokens * _STATES_PER_TOKEN)
        memory = _laid_out(num_tokens, num_states, int(num_tokens * _BLOCKS_PER_TOKEN))
        root = memory[memory[STATES_AT] : memory[STATES_AT] + STATE_SIZE]
        root[LINK] = root[END] = memory[EARLIER_END] = memory[SPARE_BLOCK] = NOWHERE
        root[FOLLOWERS + ENTRY_TOKEN] = root[FOLLOWERS + ENTRY_SIZE + ENTRY_TOKEN] = NO_TOKEN
        memory[NUM_STATES] = 1
        self.memory = memory

    def __len__(self) -> int:
        return int(self.memory[NUM_TOKENS])

    @property
    def num_bytes(self) -> int:
        """The memory that the index takes."""
        return self.memory.nbytes

    def extend(self, token_ids: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens; each is at least 0 and below ``2**31``."""
        tokens = np.asarray(token_ids, dtype=np.int32)
        done = append_all(self.memory, tokens, 0)
        while done < len(tokens):
            self.make_room()
            done = append_all(self.memory, tokens, done)

    def separate(self) -> None:
        """End the text at hand; what comes next continues nothing."""
        if self.memory[TEXT_AT] + len(self) >= self.memory[STATES_AT]:
            self.make_room()
        self.memory[self.memory[TEXT_AT] + len(self)] = SEPARATOR
        self.memory[NUM_TOKENS] += 1
        self.memory[LAST] = self.memory[CONTEXT] = ROOT_STATE
        self.memory[EARLIER_END] = NOWHERE

    def tokens(self, start: int) -> NDArray[np.int32]:
        """Return a copy of the tokens from a position on, separators included."""
        text_at = int(self.memory[TEXT_AT])
        return self.memory[text_at + start : text_at + len(self)].copy()

    def make_room(self) -> None:
        """Enlarge what is too small for the next token."""
        old = self.memory
        bounds = (int(old[TEXT_AT]), int(old[STATES_AT]), int(old[BLOCKS_AT]), len(old))
        text_at, states_at, blocks_at, end_at = bounds
        new = _laid_out(
            _enlarged(states_at - text_at, int(old[NUM_TOKENS]) + 1),
            _enlarged((blocks_at - states_at) // STATE_SIZE, int(old[NUM_STATES]) + 2),
            _enlarged(end_at - blocks_at, int(old[WANTED_SIZE])),
        )
        new[NUM_TOKENS:HEADER_SIZE] = old[NUM_TOKENS:HEADER_SIZE]
        used = blocks_at + int(old[BLOCKS_SIZE])
        for region, end in ((TEXT_AT, states_at), (STATES_AT, blocks_at), (BLOCKS_AT, used)):
            start = int(new[region])
            new[start : start + end - bounds[region]] = old[bounds[region] : end]
        self.memory = new


def _enlarged(room: int, wanted: int) -> int:
    return room if wanted <= room else int(wanted * _GROWTH) + _SMALLEST


def _laid_out(num_tokens: int, num_states: int, blocks_size: int) -> NDArray[np.int32]:
    sizes = (num_tokens, num_states * STATE_SIZE, blocks_size)
    starts = np.cumsum((HEADER_SIZE, *(_whole_lines(size) for size in sizes)))
    memory = _zeros(int(starts[-1]))
    memory[TEXT_AT : BLOCKS_AT + 1] = starts[:-1]
    return memory


def _whole_lines(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE


def _zeros(size: int) -> NDArray[np.int32]:
    """Return zeros that start with a cache line; numpy promises no such thing."""
    zeros = np.zeros(size + _CACHE_LINE, np.int32)
    first = -zeros.ctypes.data // zeros.itemsize % _CACHE_LINE
    return zeros[first : first + size]
