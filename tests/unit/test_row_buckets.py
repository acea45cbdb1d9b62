"""Which captured graph a batch runs in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_service.targets.row_buckets import (
    MAX_SPLITS,
    TILE_ROWS,
    RowBuckets,
    bucket_sizes,
    num_tiles_of,
)


@pytest.mark.parametrize("max_rows", [1, 3, 16, 64, 100, 2048, 8192])
def test_sizes_rise_to_the_largest_batch(max_rows: int) -> None:
    sizes = bucket_sizes(max_rows)

    assert sizes[-1] == max_rows
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 40


@given(num_rows=st.integers(1, 4096))
def test_padding_is_bounded(num_rows: int) -> None:
    """Small steps pad by at most half, where a row is nearly free, and large ones by a quarter."""
    buckets = RowBuckets(max_rows=4096, max_spans=256, num_kv_heads=8)

    shape = buckets.shape_for(num_rows, 1)

    assert shape is not None
    assert shape.num_rows >= num_rows
    padding = shape.num_rows - num_rows
    assert padding <= (
        num_rows if num_rows < 12 else num_rows / 2 if num_rows < 64 else num_rows / 4
    )


@given(spans=st.lists(st.integers(1, 64), min_size=1, max_size=64))
def test_the_tiles_of_any_batch_fit(spans: list[int]) -> None:
    buckets = RowBuckets(max_rows=4096, max_spans=64, num_kv_heads=8)
    num_tiles = sum(num_tiles_of(rows) for rows in spans)

    assert buckets.shape_for(sum(spans), num_tiles) is not None


def test_a_batch_that_fits_no_graph_runs_without_one() -> None:
    buckets = RowBuckets(max_rows=64, max_spans=2, num_kv_heads=8)

    assert buckets.shape_for(65, 1) is None
    assert buckets.shape_for(0, 0) is None
    assert buckets.shape_for(64, 64) is None


def test_a_single_row_is_spread_over_the_chip_and_a_full_batch_is_not() -> None:
    buckets = RowBuckets(max_rows=2048, max_spans=128, num_kv_heads=8)

    assert buckets.shapes_of(1)[-1].num_splits == MAX_SPLITS
    assert buckets.shapes_of(2048)[-1].num_splits == 1


def test_one_long_span_gets_more_of_the_chip_than_its_rows_one_by_one() -> None:
    buckets = RowBuckets(max_rows=512, max_spans=256, num_kv_heads=8)

    one_span = buckets.shape_for(16, num_tiles_of(16))
    many = buckets.shape_for(16, 16)

    assert one_span is not None
    assert many is not None
    assert one_span.num_rows == many.num_rows == 16
    assert one_span.num_splits > many.num_splits


def test_the_largest_graph_comes_first_and_there_are_few() -> None:
    """What the first one allocates serves the others."""
    shapes = list(RowBuckets(max_rows=512, max_spans=256, num_kv_heads=8).shapes())

    assert shapes[0].num_rows == 512
    assert [shape.num_rows for shape in shapes] == sorted(
        (shape.num_rows for shape in shapes), reverse=True
    )
    assert len(set(shapes)) == len(shapes) <= 40


def test_a_span_takes_whole_tiles() -> None:
    assert [num_tiles_of(rows) for rows in (1, TILE_ROWS, TILE_ROWS + 1, 64)] == [1, 1, 2, 4]
