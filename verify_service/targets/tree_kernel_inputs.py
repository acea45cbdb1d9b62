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


ALIGNMENT = 16
"""Integers. Triton compiles a kernel anew for every pattern of addresses that are multiples of 16
bytes or not, so all parts start at one; 128 bytes are also what the chip reads at once."""


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Where each part lies within the packed integers."""

    shape: GraphShape
    max_spans: int
    max_blocks: int
    """Blocks of the longest sequence."""

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield the parts and their lengths, in order."""
        for name in ("token_ids", "positions", "slots", "ancestors", "logit_rows"):
            yield name, self.shape.num_rows
        for name in ("tile_span", "tile_first", "tile_rows"):
            yield name, self.shape.num_tiles
        for name in ("span_context", "span_first_row"):
            yield name, self.max_spans
        yield "block_tables", self.max_spans * self.max_blocks

    @property
    def size(self) -> int:
        """Integers in all."""
        return self.used(self.max_spans)

    def used(self, num_spans: int) -> int:
        """Return how many integers, from the first on, a batch of ``num_spans`` spans fills."""
        return int(self.slices()["block_tables"].start) + num_spans * self.max_blocks

    def fits(self, batch: FlatBatch, block_size: int) -> bool:
        """Return whether there is room for the spans of a batch and for their block tables."""
        most = self.max_blocks * block_size
        return len(batch.spans) <= self.max_spans and all(
            span.context_len + span.num_rows <= most for span in batch.spans
        )

    def slices(self) -> dict[str, slice]:
        """Return where each part lies."""
        found: dict[str, slice] = {}
        start = 0
        for name, length in self.parts():
            found[name] = slice(start, start + length)
            start += -(-length // ALIGNMENT) * ALIGNMENT
        return found


def pack(
    batch: FlatBatch, layout: InputLayout, *, block_size: int, spare_slot: int, out: Integers
) -> None:
    """
    Write ``batch`` into ``out``  # [layout.size].

    Rows that only pad the graph store their KV in ``spare_slot`` and belong to no tile. Block
    tables keep what they held where no key of the batch lies.
    """
    where = layout.slices()
    out[: layout.used(0)] = 0
    out[where["slots"]] = spare_slot
    tables = out[where["block_tables"]].reshape(layout.max_spans, layout.max_blocks)
    wanted = logit_rows_of(batch)
    out[where["logit_rows"]][: len(wanted)] = wanted
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


def logit_rows_of(batch: FlatBatch) -> list[int]:
    """Return the rows of a batch whose logits are wanted."""
    rows: list[int] = []
    first_row = 0
    for span in batch.spans:
        rows += [first_row + row for row in span.logit_rows]
        first_row += span.num_rows
    return rows


def with_short_spans(batch: FlatBatch) -> FlatBatch | None:
    """
    Return the same rows in spans of at most ``MAX_SPAN_ROWS``; None where a tree is larger.

    The first rows of a long span are a chain of committed tokens. Since all KV of a step is stored
    before any of it is read, they can as well be context of the rows behind them.
    """
    if all(span.num_rows <= MAX_SPAN_ROWS for span in batch.spans):
        return batch
    pieces: list[RowSpan] = []
    for span in batch.spans:
        rest = span
        while rest.num_rows > MAX_SPAN_ROWS:
            cut = min(_trunk_len(rest), MAX_SPAN_ROWS)
            if cut == 0:
                return None
            pieces.append(_part(rest, 0, cut))
            rest = _part(rest, cut, rest.num_rows)
        pieces.append(rest)
    return FlatBatch(tuple(pieces))


def _trunk_len(span: RowSpan) -> int:
    """Return how many rows, from the first on, are ancestors of all rows behind them."""
    chain_len = 0
    while chain_len < span.num_rows and span.parents[chain_len] == chain_len - 1:
        chain_len += 1
    return min((parent + 1 for parent in span.parents[chain_len:]), default=chain_len)


def _part(span: RowSpan, start: int, stop: int) -> RowSpan:
    rows = slice(start, stop)
    return RowSpan(
        token_ids=span.token_ids[rows],
        positions=span.positions[rows],
        parents=tuple(max(parent - start, CONTEXT) for parent in span.parents[rows]),
        context_len=span.context_len + start,
        block_table=span.block_table,
        logit_rows=tuple(row - start for row in span.logit_rows if start <= row < stop),
    )


def ancestor_bits(span: RowSpan) -> Integers:
    """Return each row's ancestors and itself, bit ``r`` standing for row ``r``  # [num_rows]."""
    if span.num_rows > MAX_SPAN_ROWS:
        raise EngineFailed(f"a span of {span.num_rows} rows; the kernel takes {MAX_SPAN_ROWS}")
    bits: list[int] = []
    for row, parent in enumerate(span.parents):
        bits.append((bits[parent] if parent != CONTEXT else 0) | 1 << row)
    return np.array(bits, dtype=np.uint64).astype(np.int64)
