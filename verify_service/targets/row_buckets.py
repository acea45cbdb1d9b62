"""
Which CUDA graph a step runs in: batches are padded to a few row counts, each captured once. Pure.

A row costs almost nothing below the memory-bound knee, a graph costs capture time and memory; so
buckets are fine where steps are small and grow by at most a quarter where they are large.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

TILE_ROWS = 16
"""Rows of one span that share their keys' way through the chip."""
MAX_SPAN_ROWS = 64
"""Rows of one span whose ancestors fit into one 64-bit word."""
MAX_SPLITS = 16
MAX_SPARSE_ROWS = 128
"""Up to here a size is captured twice: for a few long spans and for many short ones."""
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
        fitting = (
            each for each in self.shapes_of(self.sizes[index]) if num_tiles <= each.num_tiles
        )
        return next(fitting, None)

    def shapes(self) -> Iterator[GraphShape]:
        """Yield all graphs, the largest first: what it allocates serves the others."""
        for size in reversed(self.sizes):
            yield from reversed(self.shapes_of(size))

    def shapes_of(self, size: int) -> tuple[GraphShape, ...]:
        """
        Return the graphs for ``size`` rows, ascending in tiles.

        With tiles for one row each, those of a single long span would get a small share of the
        chip: the others are empty, and which are is not known when the graph is captured.
        """
        every = self._shape(size, min(size, self.max_spans + size // TILE_ROWS))
        few = num_tiles_of(size)
        if size > MAX_SPARSE_ROWS or few >= every.num_tiles:
            return (every,)
        return self._shape(size, few), every

    def _shape(self, size: int, num_tiles: int) -> GraphShape:
        wanted = min(-(-2 * self.num_processors // (num_tiles * self.num_kv_heads)), MAX_SPLITS)
        # A power of two: every count is compiled for itself, which takes seconds.
        return GraphShape(size, num_tiles, 1 << (wanted - 1).bit_length())


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
