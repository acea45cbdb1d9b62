"""A suffix automaton that grows: owns its memory and makes room in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draft_service.suffix_extension import append_all
from draft_service.suffix_states import (
    CONTEXT,
    EARLIER_END,
    EDGE_SIZE,
    EDGES_AT,
    END,
    HEADER_SIZE,
    LAST,
    LINK,
    NO_TOKEN,
    NOWHERE,
    NUM_EDGES,
    NUM_STATES,
    NUM_TOKENS,
    ROOT_STATE,
    SEPARATOR,
    STATE_SIZE,
    STATES_AT,
    TABLE_AT,
    TABLE_MASK,
    TEXT_AT,
    TOKEN,
    WANTED_EDGES,
    fill_table,
)

_GROWTH: Final = 1.25
"""What is full grows to this much of what is used: few copies, and little room unused."""
_STATES_PER_TOKEN: Final = 1.5
_EDGES_PER_TOKEN: Final = 0.9
_SMALLEST: Final = 256
"""Tokens for which there is room at least, so that few steps of growth are needed at first."""


class SuffixIndex:
    """The texts of one owner, one after the other, as a suffix automaton."""

    __slots__ = ("memory",)

    def __init__(self, expected_tokens: int = 0) -> None:
        num_tokens = max(expected_tokens, _SMALLEST)
        num_states = int(num_tokens * _STATES_PER_TOKEN)
        memory = _laid_out(num_tokens, num_states, int(num_tokens * _EDGES_PER_TOKEN))
        root = memory[memory[STATES_AT] : memory[STATES_AT] + STATE_SIZE]
        root[LINK] = root[END] = memory[EARLIER_END] = NOWHERE
        root[TOKEN] = NO_TOKEN
        memory[NUM_STATES] = memory[NUM_EDGES] = 1
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
        if self.memory[TEXT_AT] + len(self) == self.memory[STATES_AT]:
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
        bounds = (int(old[TEXT_AT]), int(old[STATES_AT]), int(old[EDGES_AT]), int(old[TABLE_AT]))
        text_at, states_at, edges_at, table_at = bounds
        num_tokens, num_edges = int(old[NUM_TOKENS]), int(old[WANTED_EDGES])
        new = _laid_out(
            _enlarged(states_at - text_at, num_tokens + 1),
            _enlarged((edges_at - states_at) // STATE_SIZE, int(old[NUM_STATES]) + 2),
            _enlarged((table_at - edges_at) // EDGE_SIZE, num_edges),
        )
        new[NUM_TOKENS:HEADER_SIZE] = old[NUM_TOKENS:HEADER_SIZE]
        for region, end in ((TEXT_AT, states_at), (STATES_AT, edges_at), (EDGES_AT, table_at)):
            start = int(new[region])
            new[start : start + end - bounds[region]] = old[bounds[region] : end]
        if new[TABLE_MASK] == old[TABLE_MASK]:
            new[int(new[TABLE_AT]) :] = old[table_at:]
        else:
            fill_table(new)
        self.memory = new


def _enlarged(room: int, wanted: int) -> int:
    return room if wanted <= room else int(wanted * _GROWTH) + _SMALLEST


def _laid_out(num_tokens: int, num_states: int, num_edges: int) -> NDArray[np.int32]:
    num_slots = 1 << (num_edges * 4 // 3).bit_length()
    sizes = (num_tokens, num_states * STATE_SIZE, num_edges * EDGE_SIZE, num_slots)
    starts = np.cumsum((HEADER_SIZE, *sizes))
    memory = np.zeros(starts[-1], np.int32)
    memory[TEXT_AT : TABLE_AT + 1] = starts[:-1]
    memory[TABLE_MASK] = num_slots - 1
    return memory
