"""
Which CUDA graph a step runs in: batches are padded to a few row counts, each captured once. Pure.

A row costs almost nothing below the memory-bound knee, a graph costs capture time and memory; so
buckets are fine where steps are small and grow by at most a quarter where they are large.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

TILE_ROWS = 16
"""Rows of one span that share their keys' way through the chip."""
MAX_SPAN_ROWS = 64
"""Rows of one span whose ancestors fit into one 64-bit word."""
MAX_SPLITS = 16
_SMALL = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The static sizes of one captured step."""

    num_rows: int
    num_tiles: int
    num_splits: int
    """Programs that share the keys of one tile."""


@dataclass(frozen=True, slots=True)
class RowBuckets:
    """The graphs of one deployment."""

    max_rows: int
    max_spans: int
    num_kv_heads: int
    num_processors: int = 132
    """Multiprocessors of the GPU; 132 on an H100."""
    sizes: tuple[int, ...] = field(init=False)
    """Row counts that are captured, ascending; the last is ``max_rows``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", bucket_sizes(self.max_rows))

    def shape_for(self, num_rows: int, num_tiles: int) -> GraphShape | None:
        """Return the graph for a batch; None: run it without one."""
        index = bisect_left(self.sizes, num_rows)
        if num_rows < 1 or index == len(self.sizes):
            return None
        shape = self.shape_of(self.sizes[index])
        return shape if num_tiles <= shape.num_tiles else None

    def shape_of(self, size: int) -> GraphShape:
        """Return the sizes of the graph for ``size`` rows."""
        num_tiles = min(size, self.max_spans + size // TILE_ROWS)
        programs = num_tiles * self.num_kv_heads
        wanted = -(-2 * self.num_processors // programs)
        return GraphShape(size, num_tiles, max(1, min(wanted, MAX_SPLITS)))


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Return the row counts to capture up to ``max_rows``."""
    sizes = [size for size in _SMALL if size < max_rows]
    size = _SMALL[-1]
    while (size := size + max(size // 4 // TILE_ROWS, 1) * TILE_ROWS) < max_rows:
        sizes.append(size)
    return (*sizes, max_rows)


def num_tiles_of(span_rows: int) -> int:
    """Return how many tiles the rows of one span take."""
    return -(-span_rows // TILE_ROWS)
