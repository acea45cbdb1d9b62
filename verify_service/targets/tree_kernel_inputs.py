"""
One step as the tree attention kernel reads it: a row of 64-bit integers, one copy to the GPU.

All sizes are those of a captured graph; what a batch does not fill is marked as empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import EngineFailed
from verify_service.targets.kv_cache import slots_of
from verify_service.targets.row_buckets import MAX_SPAN_ROWS, TILE_ROWS, GraphShape
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Where each part lies within the packed integers."""

    shape: GraphShape
    max_spans: int
    max_blocks: int
    """Blocks of the longest sequence."""

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield the parts and their lengths, in order."""
        for name in ("token_ids", "positions", "slots", "ancestors"):
            yield name, self.shape.num_rows
        for name in ("tile_span", "tile_first", "tile_rows"):
            yield name, self.shape.num_tiles
        for name in ("span_context", "span_first_row"):
            yield name, self.max_spans
        yield "block_tables", self.max_spans * self.max_blocks

    @property
    def size(self) -> int:
        """Integers in all."""
        return sum(length for _, length in self.parts())

    def slices(self) -> dict[str, slice]:
        """Return where each part lies."""
        found: dict[str, slice] = {}
        start = 0
        for name, length in self.parts():
            found[name] = slice(start, start + length)
            start += length
        return found


def pack(
    batch: FlatBatch, layout: InputLayout, *, block_size: int, spare_slot: int, out: Integers
) -> None:
    """
    Write ``batch`` into ``out``  # [layout.size].

    Rows that only pad the graph store their KV in ``spare_slot`` and belong to no tile.
    """
    where = layout.slices()
    out[:] = 0
    out[where["slots"]] = spare_slot
    tables = out[where["block_tables"]].reshape(layout.max_spans, layout.max_blocks)
    first_row = first_tile = 0
    for index, span in enumerate(batch.spans):
        rows = slice(first_row, first_row + span.num_rows)
        stop = span.context_len + span.num_rows
        out[where["token_ids"]][rows] = span.token_ids
        out[where["positions"]][rows] = span.positions
        out[where["slots"]][rows] = slots_of(span.block_table, block_size, span.context_len, stop)
        out[where["ancestors"]][rows] = ancestor_bits(span)
        out[where["span_context"]][index] = span.context_len
        out[where["span_first_row"]][index] = first_row
        num_blocks = -(-stop // block_size)
        tables[index, :num_blocks] = span.block_table[:num_blocks]
        for start in range(0, span.num_rows, TILE_ROWS):
            out[where["tile_span"]][first_tile] = index
            out[where["tile_first"]][first_tile] = start
            out[where["tile_rows"]][first_tile] = min(TILE_ROWS, span.num_rows - start)
            first_tile += 1
        first_row += span.num_rows


def ancestor_bits(span: RowSpan) -> Integers:
    """Return each row's ancestors and itself, bit ``r`` standing for row ``r``  # [num_rows]."""
    if span.num_rows > MAX_SPAN_ROWS:
        raise EngineFailed(f"a span of {span.num_rows} rows; the kernel takes {MAX_SPAN_ROWS}")
    bits: list[int] = []
    for row, parent in enumerate(span.parents):
        bits.append((bits[parent] if parent != CONTEXT else 0) | 1 << row)
    return np.array(bits, dtype=np.uint64).astype(np.int64)
