"""
Products of rows with fp16 weights, compiled for the CPU.

Weights lie in panels of 16 outputs, one after another in the order in which they are read, and are
streamed from memory once however many rows there are. Every output is one chain of fused
multiply-adds over the inputs, first to last: its bits depend on its row and its weights alone, not
on the other rows, the tile that it was computed in, or the thread.

The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008): tiles of 6 rows by 16 outputs, whose sums fill the registers of AVX2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from paceline.compiled_code import code_folder, compiled_callback, compiled_part, write_prefetch
from verify_service.targets import team_tasks
from verify_service.targets.team_tasks import array_at, take

PANEL: Final = 16
"""Outputs that lie side by side."""

_TILE_ROWS: Final = 6
_GROUP_ROWS: Final = 60
"""Rows that one pass over a panel serves; more of them would not stay in the cache."""

_WEIGHT_BYTES: Final = 2
_REAL_BYTES: Final = 4

NEXT, NUM_PANELS, CHUNK, NUM_ROWS, DEPTH, ROWS, WEIGHTS, BIAS, OUT = range(9)
TASK_FIELDS: Final = 9
"""
Columns of a task, all int64.

First four counts of panels and rows: the first panel that no thread has taken yet, how many there
are, how many a thread takes at once, and the rows; then how many inputs a row has; then addresses:
rows (float32, [NUM_ROWS, DEPTH]), weights (fp16, [NUM_PANELS, DEPTH, PANEL]), bias (float32,
[NUM_PANELS * PANEL]) and results (float32, [NUM_ROWS, NUM_PANELS * PANEL]). All are contiguous, and
the weights aligned to 32 bytes.
"""

_code: Final[Any] = cgutils
_FOLDER: Final = code_folder([Path(__file__), Path(team_tasks.__file__)])
_INT64: Final = ir.IntType(64)
_INT32: Final = ir.IntType(32)
_REAL: Final = ir.FloatType()
_REALS: Final = ir.VectorType(_REAL, PANEL)
_HALVES: Final = ir.VectorType(ir.HalfType(), PANEL)
_NO_REALS: Final = ir.Constant(_REALS, ir.Undefined)

Tile = Callable[[int, int, int, int, int, int, int, int], None]


def converts_fp16() -> bool:
    """Return whether this CPU converts fp16 and multiplies and adds in one instruction."""
    features = binding.get_host_cpu_features()
    on_x86 = "sse2" in features
    return not on_x86 or all(features.get(name) for name in ("f16c", "fma", "avx2"))


def _tile_of(num_rows: int) -> Tile:
    """Return the product of ``num_rows`` rows with one panel, for compiled code to call."""

    def tile(
        _context: object,
        rows: Any,
        weights: Any,
        depth: Any,
        bias: Any,
        out: Any,
        out_stride: Any,
        ahead: Any,
        ahead_step: Any,
    ) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: object, values: Any) -> Any:
            _write_tile(builder, num_rows, *values)
            return context.get_dummy_value()

        kinds = (rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
        return types.void(*kinds), generate

    return cast(Tile, intrinsic(tile))


def _write_tile(
    builder: Any,
    num_rows: int,
    rows: Any,
    weights: Any,
    depth: Any,
    bias: Any,
    out: Any,
    out_stride: Any,
    ahead: Any,
    ahead_step: Any,
) -> None:
    """Generate the loop over the inputs, with all sums in registers."""
    start = builder.load(builder.inttoptr(bias, _REALS.as_pointer()), align=_REAL_BYTES)
    sums = [_code.alloca_once_value(builder, start) for _ in range(num_rows)]
    stride = builder.mul(depth, _INT64(_REAL_BYTES))
    row_pointers = [
        builder.inttoptr(builder.add(rows, builder.mul(stride, _INT64(r))), _REAL.as_pointer())
        for r in range(num_rows)
    ]
    panel = builder.inttoptr(weights, _HALVES.as_pointer())
    kind = ir.FunctionType(_REALS, [_REALS, _REALS, _REALS])
    multiply_add = _code.get_or_insert_function(builder.module, kind, f"llvm.fma.v{PANEL}f32")
    with _code.for_range(builder, depth) as loop:
        next_address = builder.add(ahead, builder.mul(loop.index, ahead_step))
        next_bytes = builder.inttoptr(next_address, cgutils.voidptr_t)
        write_prefetch(builder, next_bytes, level=2)
        halves = builder.load(builder.gep(panel, [loop.index]), align=PANEL * _WEIGHT_BYTES)
        factors = builder.fpext(halves, _REALS)
        for pointer, total in zip(row_pointers, sums, strict=True):
            value = _broadcast(builder, builder.load(builder.gep(pointer, [loop.index])))
            builder.store(builder.call(multiply_add, [value, factors, builder.load(total)]), total)
    for r, total in enumerate(sums):
        address = builder.add(out, builder.mul(out_stride, _INT64(r)))
        place = builder.inttoptr(address, _REALS.as_pointer())
        builder.store(builder.load(total), place, align=_REAL_BYTES)


def _broadcast(builder: Any, value: Any) -> Any:
    first = builder.insert_element(_NO_REALS, value, _INT32(0))
    lanes = ir.Constant(ir.VectorType(_INT32, PANEL), [0] * PANEL)
    return builder.shuffle_vector(first, _NO_REALS, lanes)


_one, _two, _three, _four, _five, _six = (_tile_of(count) for count in range(1, _TILE_ROWS + 1))
_part = partial(compiled_part, _nrt=False)


@_part
def _multiply_tile(
    num_rows: int,
    rows: int,
    weights: int,
    depth: int,
    bias: int,
    out: int,
    out_stride: int,
    ahead: int,
    ahead_step: int,
) -> None:
    if num_rows == 1:
        _one(rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
    elif num_rows == 2:
        _two(rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
    elif num_rows == 3:
        _three(rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
    elif num_rows == 4:
        _four(rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
    elif num_rows == 5:
        _five(rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
    else:
        _six(rows, weights, depth, bias, out, out_stride, ahead, ahead_step)


@_part
def _multiply_panel(task: Any, panel: int, first: int, last: int) -> None:
    """Multiply rows ``first`` to ``last - 1`` with a panel, loading the next one meanwhile."""
    depth = task[DEPTH]
    panel_bytes = depth * PANEL * _WEIGHT_BYTES
    weights = task[WEIGHTS] + panel * panel_bytes
    columns = panel * PANEL * _REAL_BYTES
    out_stride = task[NUM_PANELS] * PANEL * _REAL_BYTES
    num_tiles = (last - first + _TILE_ROWS - 1) // _TILE_ROWS
    ahead_step = PANEL * _WEIGHT_BYTES // num_tiles
    for tile in range(num_tiles):
        row = first + tile * _TILE_ROWS
        _multiply_tile(
            min(_TILE_ROWS, last - row),
            task[ROWS] + row * depth * _REAL_BYTES,
            weights,
            depth,
            task[BIAS] + columns,
            task[OUT] + row * out_stride + columns,
            out_stride,
            weights + panel_bytes + tile * depth * ahead_step,
            ahead_step,
        )


def _multiply(address: Any) -> None:
    """Multiply panels that no other thread has taken, until there are none."""
    task = array_at(address, TASK_FIELDS)
    while True:
        start = take(task.ctypes.data, task[CHUNK])
        if start >= task[NUM_PANELS]:
            return
        stop = min(start + task[CHUNK], task[NUM_PANELS])
        for first in range(0, task[NUM_ROWS], _GROUP_ROWS):
            last = min(first + _GROUP_ROWS, task[NUM_ROWS])
            for panel in range(start, stop):
                _multiply_panel(task, panel, first, last)


multiply: Final = compiled_callback(_multiply, _FOLDER, team_tasks.SIGNATURE)
"""Address of what every thread of a team calls with the address of one task."""
