"""Batches of equal spans for ``bench.gpu_step``: chains to prefill with, trees to verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verify_service.targets.row_buckets import MAX_SPAN_ROWS
from verify_service.targets.target import FlatBatch, RowSpan

NUM_TOKENS = 97
"""Ids that occur; every model here knows them."""
PREFILL_SPANS = 16


def blocks_per_span(context: int, block_size: int) -> int:
    """Return how many blocks hold a context and the largest tree behind it."""
    return -(-(context + MAX_SPAN_ROWS) // block_size)


def tree_batch(num_spans: int, num_rows: int, context: int, block_size: int) -> FlatBatch:
    """Return spans with two branches below each row, each behind ``context`` stored tokens."""
    parents = tuple((row - 1) // 2 if row else -1 for row in range(num_rows))
    return _batch(num_spans, parents, context, context, block_size)


def prefill_batches(num_spans: int, context: int, block_size: int) -> Iterator[FlatBatch]:
    """Yield chains that store a context for every span, few spans and rows at a time."""
    for start in range(0, context, MAX_SPAN_ROWS):
        rows = min(MAX_SPAN_ROWS, context - start)
        every = _batch(num_spans, tuple(range(-1, rows - 1)), start, context, block_size).spans
        for first in range(0, num_spans, PREFILL_SPANS):
            yield FlatBatch(every[first : first + PREFILL_SPANS])


def chain_batch(tree: FlatBatch, path: Sequence[int]) -> FlatBatch:
    """Return the rows ``path`` of every span as chains of their own."""
    spans = []
    for span in tree.spans:
        first, count = span.context_len, len(path)
        spans.append(
            RowSpan(
                token_ids=tuple(span.token_ids[row] for row in path),
                positions=tuple(range(first, first + count)),
                parents=tuple(range(-1, count - 1)),
                context_len=first,
                block_table=span.block_table,
                logit_rows=tuple(range(count)),
            )
        )
    return FlatBatch(tuple(spans))


def path_to(leaf: int) -> list[int]:
    """Return the rows from the first one down to ``leaf`` in a tree of ``tree_batch``."""
    path = [leaf]
    while path[-1] > 0:
        path.append((path[-1] - 1) // 2)
    return path[::-1]


def _batch(
    num_spans: int, parents: tuple[int, ...], start: int, context: int, block_size: int
) -> FlatBatch:
    """Return equal spans at ``start`` whose blocks have room for ``context`` and a tree."""
    per_span, num_rows = blocks_per_span(context, block_size), len(parents)
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    spans = []
    for index in range(num_spans):
        tokens = (17 * (start + row) + 5 * index + 1 for row in range(num_rows))
        spans.append(
            RowSpan(
                token_ids=tuple(token % NUM_TOKENS for token in tokens),
                positions=tuple(start + depth for depth in depths),
                parents=parents,
                context_len=start,
                block_table=tuple(range(index * per_span, (index + 1) * per_span)),
                logit_rows=tuple(range(num_rows)),
            )
        )
    return FlatBatch(tuple(spans))
