"""
The products of some queries with the keys of a path, and their weighted sums of values, compiled
for the CPU.

What is added up stays in registers: a key or a value is read once for all queries of a tile, a
query once for all its keys. The order of additions depends on the place in the path alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from paceline.compiled_code import write_prefetch
from verify_service.targets.vector_code import (
    INT64,
    LANES,
    REAL,
    REAL_BYTES,
    REALS,
    broadcast,
    choose_count,
    code,
    has_avx512,
    multiply_add,
    pointer,
    pointers,
    sum_of_lanes,
)

HEADS: Final = 4
"""Queries of a tile, where as many share a key."""
_KEYS, _VECTORS = (4, 4) if has_avx512 else (1, 1)
"""Keys of a tile of scores, and vectors of a value in a tile of sums: what the registers hold."""

_SLOT_BYTES: Final = 8
_VECTOR_BYTES: Final = LANES * REAL_BYTES
_NOTHING: Final = ir.Constant(REALS, [0.0] * LANES)

Product = Callable[[int, int, int, int, int, int, int, int, int, int, int], None]
"""
Of 1 to ``HEADS`` queries, each with a row of scores: how many there are; the bytes from one query
to the next and from one row to the next; the address of the first query's vectors, and how many
there are of a query, a key or a value; where those of slot 0 would lie, and the bytes of a slot;
the address of the path's slots, int64, and how many there are; the address of the first row; and
for scores the bytes from a key to the value of its slot, which is fetched into the cache meanwhile.
"""


class _Path(NamedTuple):
    """Arguments of a product, as LLVM values."""

    query_bytes: Any
    row_bytes: Any
    queries: Any
    num_vectors: Any
    values: Any
    slot_bytes: Any
    slots: Any
    num_slots: Any
    rows: Any
    value_distance: Any


def _product(write: Callable[[Any, int, _Path], None]) -> Product:
    def product(
        _context: object,
        num_heads: Any,
        query_bytes: Any,
        row_bytes: Any,
        queries: Any,
        num_vectors: Any,
        values: Any,
        slot_bytes: Any,
        slots: Any,
        num_slots: Any,
        rows: Any,
        value_distance: Any,
    ) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: object, arguments: Any) -> Any:
            count, *others = arguments
            path = _Path(*others)
            choose_count(builder, count, HEADS, lambda number: write(builder, number, path))
            return context.get_dummy_value()

        kinds = (num_heads, query_bytes, row_bytes, queries, num_vectors)
        others = (values, slot_bytes, slots, num_slots, rows, value_distance)
        return types.void(*kinds, *others), generate

    return cast(Product, intrinsic(product))


def _write_scores(builder: Any, num_heads: int, path: _Path) -> None:
    in_tiles = builder.sub(path.num_slots, builder.urem(path.num_slots, INT64(_KEYS)))
    for num_keys, first, last in ((_KEYS, INT64(0), in_tiles), (1, in_tiles, path.num_slots)):
        with code.for_range_slice(builder, first, last, INT64(num_keys)) as (key, _):
            _write_score_tile(builder, num_heads, num_keys, path, key)


def _write_score_tile(builder: Any, num_heads: int, num_keys: int, path: _Path, key: Any) -> None:
    sums = _zeros(builder, num_heads, num_keys)
    first = builder.add(path.slots, builder.mul(key, INT64(_SLOT_BYTES)))
    slots = pointers(builder, first, num_keys, INT64(_SLOT_BYTES), INT64)
    keys = [_vectors_of(builder, path, slot, INT64(0)) for slot in slots]
    queries = pointers(builder, path.queries, num_heads, path.query_bytes, REALS)
    with code.for_range(builder, path.num_vectors) as loop:
        for key_place in keys:
            place = builder.ptrtoint(builder.gep(key_place, [loop.index]), INT64)
            value = builder.inttoptr(builder.add(place, path.value_distance), code.voidptr_t)
            write_prefetch(builder, value, level=2)
        parts = [_vector(builder, place, loop.index) for place in keys]
        for place, totals in zip(queries, sums, strict=True):
            query = _vector(builder, place, loop.index)
            for part, total in zip(parts, totals, strict=True):
                _add_product(builder, query, part, total)
    rows = pointers(builder, path.rows, num_heads, path.row_bytes, REAL)
    for row, totals in zip(rows, sums, strict=True):
        for index, total in enumerate(totals):
            score = sum_of_lanes(builder, builder.load(total))
            builder.store(score, builder.gep(row, [builder.add(key, INT64(index))]))


def _write_sums(builder: Any, num_heads: int, path: _Path) -> None:
    count = path.num_vectors
    in_tiles = builder.sub(count, builder.urem(count, INT64(_VECTORS)))
    for width, first, last in ((_VECTORS, INT64(0), in_tiles), (1, in_tiles, count)):
        with code.for_range_slice(builder, first, last, INT64(width)) as (vector, _):
            _write_sum_tile(builder, num_heads, width, path, vector)


def _write_sum_tile(builder: Any, num_heads: int, width: int, path: _Path, vector: Any) -> None:
    sums = _zeros(builder, num_heads, width)
    offset = builder.mul(vector, INT64(_VECTOR_BYTES))
    slots = pointer(builder, path.slots, INT64)
    rows = pointers(builder, path.rows, num_heads, path.row_bytes, REAL)
    with code.for_range(builder, path.num_slots) as loop:
        slot = builder.gep(slots, [loop.index])
        value = _vectors_of(builder, path, slot, offset)
        parts = [_vector(builder, value, INT64(index)) for index in range(width)]
        for row, totals in zip(rows, sums, strict=True):
            weight = broadcast(builder, builder.load(builder.gep(row, [loop.index])))
            for part, total in zip(parts, totals, strict=True):
                _add_product(builder, weight, part, total)
    first = builder.add(path.queries, offset)
    places = pointers(builder, first, num_heads, path.query_bytes, REALS)
    for place, totals in zip(places, sums, strict=True):
        for index, total in enumerate(totals):
            target = builder.gep(place, [INT64(index)])
            builder.store(builder.load(total), target, align=REAL_BYTES)


def _zeros(builder: Any, num_heads: int, width: int) -> list[list[Any]]:
    return [
        [code.alloca_once_value(builder, _NOTHING) for _ in range(width)] for _ in range(num_heads)
    ]


def _vectors_of(builder: Any, path: _Path, slot: Any, offset: Any) -> Any:
    """Return the pointer to the vectors of the slot whose number is at a pointer."""
    start = builder.add(path.values, builder.mul(builder.load(slot), path.slot_bytes))
    return pointer(builder, builder.add(start, offset), REALS)


def _vector(builder: Any, place: Any, index: Any) -> Any:
    return builder.load(builder.gep(place, [index]), align=REAL_BYTES)


def _add_product(builder: Any, factor: Any, other: Any, total: Any) -> None:
    added = multiply_add(builder, factor, other, builder.load(total), is_exact=False)
    builder.store(added, total)


write_scores: Final = _product(_write_scores)
"""Called from compiled code: writes the products of queries and keys in the rows."""

write_sums: Final = _product(_write_sums)
"""Called from compiled code: writes where queries were the sums of values, rows being weights."""
