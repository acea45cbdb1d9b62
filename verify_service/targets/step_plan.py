"""
What all layers of one forward pass share: positions, slots, and who sees whom. No arithmetic.

Keys are laid out as they are stored: the context, then the rows of the span. An ancestor keeps
its place in that order whether it is still a row or already context; what a row must not see is
masked in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from verify_service.targets.kv_cache import Slots, slots_of
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan

MIN_TILE_ROWS = 16

MAX_SCORES = 1 << 21
"""Scores held at once; a longer span is attended in tiles of rows."""


@dataclass(frozen=True, slots=True)
class HeadGroups:
    """How the query heads of a layer share its key heads, and how far back the layer looks."""

    num_kv_heads: int
    num_queries_per_kv_head: int
    window: int | None


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows of one span that are attended together, over the keys that any of them sees."""

    first_row: int
    """In the batch."""
    num_rows: int
    key_slots: slice | torch.Tensor
    mask: torch.Tensor  # [num_rows, 1, num_keys]: 0 or -inf


@dataclass(slots=True)
class StepPlan:
    """One batch, seen from the attention layers."""

    batch: FlatBatch
    block_size: int
    device: torch.device
    slots: torch.Tensor = field(init=False)  # [num_rows]
    _tiles: dict[HeadGroups, tuple[RowTile, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        slots = [
            slots_of(
                span.block_table,
                self.block_size,
                span.context_len,
                span.context_len + span.num_rows,
            )
            for span in self.batch.spans
        ]
        self.slots = torch.from_numpy(np.concatenate(slots)).to(self.device)

    def tiles(self, heads: HeadGroups) -> tuple[RowTile, ...]:
        """Return the tiles of all spans for layers with these heads; built once per step."""
        if heads not in self._tiles:
            self._tiles[heads] = tuple(self._build_tiles(heads))
        return self._tiles[heads]

    def _build_tiles(self, heads: HeadGroups) -> Iterator[RowTile]:
        first_row = 0
        num_heads = heads.num_kv_heads * heads.num_queries_per_kv_head
        for span in self.batch.spans:
            sight = _Sight(span, heads.window)
            num_keys = span.context_len + span.num_rows
            size = max(MIN_TILE_ROWS, MAX_SCORES // (num_heads * num_keys))
            for start in range(0, span.num_rows, size):
                stop = min(start + size, span.num_rows)
                yield self._build_tile(sight, first_row, start, stop)
            first_row += span.num_rows

    def _build_tile(self, sight: _Sight, first_row: int, start: int, stop: int) -> RowTile:
        span = sight.span
        first_key = sight.first_key(start, stop)
        slots = slots_of(span.block_table, self.block_size, first_key, span.context_len + stop)
        mask = sight.mask(start, stop, first_key)
        return RowTile(
            first_row=first_row + start,
            num_rows=stop - start,
            key_slots=_as_range(slots, self.device),
            mask=torch.from_numpy(mask[:, None]).to(self.device),
        )


class _Sight:
    """Which keys the rows of a span see."""

    def __init__(self, span: RowSpan, window: int | None) -> None:
        self.span = span
        self._window = window
        self._positions = np.array(span.positions, dtype=np.int64)
        self._ancestors = _ancestors(span)

    def first_key(self, start: int, stop: int) -> int:
        """Return the index of the first stored token that any of the rows sees."""
        if self._window is None:
            return 0
        oldest = int(self._positions[start:stop].min()) - self._window + 1
        return min(max(oldest, 0), self.span.context_len)

    def mask(self, start: int, stop: int, first_key: int) -> npt.NDArray[np.float32]:
        """Return 0 for what is seen and -inf elsewhere  # [stop - start, keys from first_key]."""
        context_len = self.span.context_len
        context = np.arange(first_key, context_len)
        # The stored context is dense: there an index is a position.
        key_positions = np.concatenate([context, self._positions[:stop]])
        seen = np.ones((stop - start, len(key_positions)), dtype=np.bool_)
        seen[:, len(context) :] = self._ancestors[start:stop, :stop]
        if self._window is not None:
            distance = self._positions[start:stop, None] - key_positions
            seen &= distance < self._window
        return np.where(seen, np.float32(0), np.float32(-np.inf))


def _ancestors(span: RowSpan) -> npt.NDArray[np.bool_]:
    if span.is_chain:
        return np.tri(span.num_rows, dtype=np.bool_)
    seen = np.eye(span.num_rows, dtype=np.bool_)
    for row, parent in enumerate(span.parents):
        if parent != CONTEXT:
            seen[row] |= seen[parent]
    return seen


def _as_range(slots: Slots, device: torch.device) -> slice | torch.Tensor:
    if bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return torch.from_numpy(slots).to(device)
