"""
Products of rows with fp16 weights in bf16, compiled for CPUs that multiply two pairs at once.

Rough and fast: they only tell which exact products are worth computing (``screened_head``). Of
each panel of 16 outputs just the largest product is kept, so that hardly anything is written.

``VDPBF16PS`` (Intel SDM, volume 2) adds the products of pairs of bf16 to float32 sums, reading
subnormal numbers as zero. Weights become bf16 in three operations on whole registers: fp16 has 5
bits of exponent and 10 of fraction, so a shift by 3 with the sign kept in place gives 7 bits of
fraction, under an exponent that is smaller by ``EXPONENT_SHIFT`` than it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

from paceline.compiled_code import code_folder, compiled_callback, compiled_part, write_prefetch
from verify_service.targets import team_tasks, vector_code
from verify_service.targets.team_tasks import array_at, take
from verify_service.targets.vector_code import (
    INT64,
    LANES,
    REAL,
    REAL_BYTES,
    REALS,
    broadcast,
    choose_count,
    code,
    pointers,
)

EXPONENT_SHIFT: Final = 112
"""Of bf16 against fp16: 127 - 15."""
ROW_EXPONENT: Final = 64
"""
Rows are multiplied by 2 to the power of this, sums by what is then missing of ``EXPONENT_SHIFT``:
so neither comes near the ends of what a float32 holds.
"""

ROUNDED_UP: Final = 4
DROPPED_BITS: Final = 3
KEPT_BITS: Final = 0x8FFF
"""The bits of fp16 weights as bf16: ``(bits + ROUNDED_UP >> DROPPED_BITS) & KEPT_BITS``."""

NEXT, NUM_PANELS, NUM_ROWS, NUM_PAIRS, ROWS, WEIGHTS, MAXIMA = range(7)
TASK_FIELDS: Final = 7
"""
Columns of a task, all int64.

First three counts of panels and rows as in ``matrix_kernel``; then half of how many inputs a row
has; then addresses: rows (bf16, [NUM_ROWS, NUM_PAIRS, 2]), weights (fp16, [NUM_PANELS, NUM_PAIRS,
2, LANES]) and results (float32, [NUM_ROWS, NUM_PANELS]). All are contiguous.
"""

_TILE_ROWS: Final = 16
_PAIR: Final = 2
_PAIR_BYTES: Final = 4
_WEIGHT_BYTES: Final = _PAIR * LANES * 2
_FOLDER: Final = code_folder(
    [Path(__file__), Path(team_tasks.__file__), Path(vector_code.__file__)]
)


class _BrainFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's bf16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


_INT16: Final = ir.IntType(16)
_INT32: Final = ir.IntType(32)
_WORDS: Final = ir.VectorType(_INT16, _PAIR * LANES)
_BRAIN_FLOATS: Final = ir.VectorType(_BrainFloat(), _PAIR * LANES)

Tile = Callable[[int, int, int, int, int, int, int, int], None]


def multiplies_bf16() -> bool:
    """Return whether this CPU has the instruction, for registers of ``LANES`` float32."""
    features = binding.get_host_cpu_features()
    return all(features.get(name) for name in ("avx512f", "avx512bw", "avx512bf16"))


def _tile(
    _context: object,
    num_rows: Any,
    rows: Any,
    weights: Any,
    num_pairs: Any,
    maxima: Any,
    maxima_stride: Any,
    ahead: Any,
    ahead_step: Any,
) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, _signature: object, values: Any) -> Any:
        def write(count: int) -> None:
            _write_tile(builder, count, *values[1:])

        choose_count(builder, values[0], _TILE_ROWS, write)
        return context.get_dummy_value()

    kinds = (num_rows, rows, weights, num_pairs, maxima, maxima_stride, ahead, ahead_step)
    return types.void(*kinds), generate


def _write_tile(
    builder: Any,
    num_rows: int,
    rows: Any,
    weights: Any,
    num_pairs: Any,
    maxima: Any,
    maxima_stride: Any,
    ahead: Any,
    ahead_step: Any,
) -> None:
    """Generate the loop over pairs of inputs, with all sums in registers."""
    nothing = ir.Constant(REALS, [0.0] * LANES)
    sums = [code.alloca_once_value(builder, nothing) for _ in range(num_rows)]
    row_bytes = builder.mul(num_pairs, INT64(_PAIR_BYTES))
    row_pointers = pointers(builder, rows, num_rows, row_bytes, _INT32)
    panel = builder.inttoptr(weights, _WORDS.as_pointer())
    with code.for_range(builder, num_pairs) as loop:
        next_address = builder.add(ahead, builder.mul(loop.index, ahead_step))
        write_prefetch(builder, builder.inttoptr(next_address, code.voidptr_t), level=2)
        halves = builder.load(builder.gep(panel, [loop.index]), align=_WEIGHT_BYTES // _PAIR)
        factors = _as_bf16(builder, halves)
        for pointer, total in zip(row_pointers, sums, strict=True):
            pair = builder.load(builder.gep(pointer, [loop.index]))
            builder.store(_dot_product(builder, builder.load(total), factors, pair), total)
    missing = REAL(2.0 ** (EXPONENT_SHIFT - ROW_EXPONENT))
    places = pointers(builder, maxima, num_rows, maxima_stride, REAL)
    for place, total in zip(places, sums, strict=True):
        largest = _largest_lane(builder, builder.load(total))
        builder.store(builder.fmul(largest, missing), place, align=REAL_BYTES)


def _as_bf16(builder: Any, halves: Any) -> Any:
    """Return weights of two inputs as bf16, those of an output side by side."""
    order = [index for lane in range(LANES) for index in (lane, LANES + lane)]
    mask = ir.Constant(ir.VectorType(_INT32, len(order)), order)
    words = builder.shuffle_vector(halves, halves, mask)
    words = builder.add(words, _same_words(ROUNDED_UP))
    words = builder.ashr(words, _same_words(DROPPED_BITS))
    words = builder.and_(words, _same_words(KEPT_BITS))
    return builder.bitcast(words, _BRAIN_FLOATS)


def _same_words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * _WORDS.count)


def _dot_product(builder: Any, total: Any, factors: Any, pair: Any) -> Any:
    pairs = broadcast(builder, pair)
    kind = ir.FunctionType(REALS, [REALS, _BRAIN_FLOATS, _BRAIN_FLOATS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = code.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [total, factors, builder.bitcast(pairs, _BRAIN_FLOATS)])


def _largest_lane(builder: Any, vector: Any) -> Any:
    kind = ir.FunctionType(REAL, [REALS])
    name = f"llvm.vector.reduce.fmax.v{LANES}f32"
    function = code.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [vector])


_multiply_tile = cast(Tile, intrinsic(_tile))
_part = partial(compiled_part, _nrt=False)


@_part
def _screen_panel(task: Any, panel: int, following: int) -> None:
    """Multiply all rows with a panel, loading the ``following`` one meanwhile."""
    num_rows, num_pairs = task[NUM_ROWS], task[NUM_PAIRS]
    num_tiles = max((num_rows + _TILE_ROWS - 1) // _TILE_ROWS, 1)
    tile_rows = max((num_rows + num_tiles - 1) // num_tiles, 1)
    maxima_stride = task[NUM_PANELS] * REAL_BYTES
    panel_bytes = num_pairs * _WEIGHT_BYTES
    weights = task[WEIGHTS] + panel * panel_bytes
    ahead_step = _WEIGHT_BYTES // num_tiles
    ahead = task[WEIGHTS] + following * panel_bytes
    for first in range(0, num_rows, tile_rows):
        _multiply_tile(
            min(tile_rows, num_rows - first),
            task[ROWS] + first * num_pairs * _PAIR_BYTES,
            weights,
            num_pairs,
            task[MAXIMA] + first * maxima_stride + panel * REAL_BYTES,
            maxima_stride,
            ahead,
            ahead_step,
        )
        ahead += num_pairs * ahead_step


def _screen(address: Any) -> None:
    """Multiply panels that no other thread has taken, until there are none."""
    task = array_at(address, TASK_FIELDS)
    panel = take(task.ctypes.data, 1)
    while panel < task[NUM_PANELS]:
        # Taken before this one is done, so that it can be loaded meanwhile.
        following = take(task.ctypes.data, 1)
        _screen_panel(task, panel, following)
        panel = following


screen: Final = compiled_callback(_screen, _FOLDER, team_tasks.SIGNATURE)
"""Address of what every thread of a team calls with the address of one task."""
