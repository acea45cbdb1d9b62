"""
Products of rows with fp16 weights, compiled for the CPU.

Weights lie in panels of 16 outputs, one after another in the order in which they are read, and are
streamed from memory once however many rows there are. Every output is one chain of fused
multiply-adds over the inputs, first to last: its bits depend on its row and its weights alone, not
on the other rows, the tile that it was computed in, or the thread.

The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008): tiles of rows by 16 outputs, with as many rows as there are registers for their sums, since
every tile converts the weights anew. One or two rows that are left take two panels side by side:
with one, every sum would wait for its last addition.
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
    has_avx512,
    multiply_add,
    pointers,
)

PANEL: Final = LANES
"""Outputs that lie side by side."""

_TILE_ROWS, _MOST_ROWS, _MOST_ALIASED = (8, 12, 10) if has_avx512 else (6, 6, 6)
"""Rows of a tile, and the most that one takes where there are no others. AVX512 has registers for
12 and more, but rows whose width is a multiple of ``_ALIASED_WIDTH`` share the 8 places of a cache
line: 12 of them cost a third more in one tile than in two."""
_ALIASED_WIDTH: Final = 1024
_WIDE_ROWS: Final = 2
_WIDE_PANELS: Final = 2
_GROUP_ROWS: Final = 64 // _TILE_ROWS * _TILE_ROWS
"""Rows that one pass over a panel serves; more of them would not stay in the cache."""

_WEIGHT_BYTES: Final = 2

NEXT, NUM_PANELS, NUM_ROWS, DEPTH, ROWS, WEIGHTS, BIAS, OUT = range(8)
TASK_FIELDS: Final = 8
"""
Columns of a task, all int64.

First three counts of panels and rows: the first panel that no thread has taken yet, how many there
are, and the rows; then how many inputs a row has; then addresses: rows (float32, [NUM_ROWS,
DEPTH]), weights (fp16, [NUM_PANELS, DEPTH, PANEL]), bias (float32, [NUM_PANELS * PANEL]) and
results (float32, [NUM_ROWS, NUM_PANELS * PANEL]). All are contiguous, and the weights aligned to
32 bytes.
"""

_FOLDER: Final = code_folder(
    [Path(__file__), Path(team_tasks.__file__), Path(vector_code.__file__)]
)
_HALVES: Final = ir.VectorType(ir.HalfType(), PANEL)

Tile = Callable[[int, int, int, int, int, int, int, int, int], None]


def converts_fp16() -> bool:
    """Return whether this CPU converts fp16 and multiplies and adds in one instruction."""
    features = binding.get_host_cpu_features()
    on_x86 = "sse2" in features
    return not on_x86 or all(features.get(name) for name in ("f16c", "fma", "avx2"))


def _tiles_of(max_rows: int, num_panels: int = 1) -> Tile:
    """Return the product of 1 to ``max_rows`` rows with panels side by side, for compiled code."""

    def tile(
        _context: object,
        num_rows: Any,
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
            def write(count: int) -> None:
                _write_tile(builder, count, num_panels, *values[1:])

            choose_count(builder, values[0], max_rows, write)
            return context.get_dummy_value()

        kinds = (num_rows, rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
        return types.void(*kinds), generate

    return cast(Tile, intrinsic(tile))


def _write_tile(
    builder: Any,
    num_rows: int,
    num_panels: int,
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
    starts = [
        builder.load(pointer, align=REAL_BYTES)
        for pointer in pointers(builder, bias, num_panels, INT64(PANEL * REAL_BYTES), REALS)
    ]
    sums = [[code.alloca_once_value(builder, start) for start in starts] for _ in range(num_rows)]
    row_bytes = builder.mul(depth, INT64(REAL_BYTES))
    panel_bytes = builder.mul(depth, INT64(PANEL * _WEIGHT_BYTES))
    row_pointers = pointers(builder, rows, num_rows, row_bytes, REAL)
    panels = pointers(builder, weights, num_panels, panel_bytes, _HALVES)
    with code.for_range(builder, depth) as loop:
        next_address = builder.add(ahead, builder.mul(loop.index, ahead_step))
        next_bytes = builder.inttoptr(next_address, code.voidptr_t)
        write_prefetch(builder, next_bytes, level=2)
        places = [builder.gep(panel, [loop.index]) for panel in panels]
        halves = [builder.load(place, align=PANEL * _WEIGHT_BYTES) for place in places]
        factors = [builder.fpext(half, REALS) for half in halves]
        for pointer, totals in zip(row_pointers, sums, strict=True):
            value = broadcast(builder, builder.load(builder.gep(pointer, [loop.index])))
            for factor, total in zip(factors, totals, strict=True):
                former = builder.load(total)
                builder.store(multiply_add(builder, value, factor, former, is_exact=True), total)
    for r, totals in enumerate(sums):
        address = builder.add(out, builder.mul(out_stride, INT64(r)))
        places = pointers(builder, address, num_panels, INT64(PANEL * REAL_BYTES), REALS)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=REAL_BYTES)


_narrow_tile, _wide_tile = _tiles_of(_MOST_ROWS), _tiles_of(_WIDE_ROWS, _WIDE_PANELS)
_part = partial(compiled_part, _nrt=False)


@_part
def _multiply_tile(
    num_panels: int,
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
    if num_panels == _WIDE_PANELS:
        _wide_tile(num_rows, rows, weights, depth, bias, out, out_stride, ahead, ahead_step)
    else:
        _narrow_tile(num_rows, rows, weights, depth, bias, out, out_stride, ahead, ahead_step)


@_part
def _multiply_panels(
    task: Any, panel: int, num_panels: int, following: int, first: int, last: int
) -> None:
    """Multiply rows with panels side by side, one or two, loading those ``following`` meanwhile."""
    depth = task[DEPTH]
    panel_bytes = depth * PANEL * _WEIGHT_BYTES
    out_stride = task[NUM_PANELS] * PANEL * REAL_BYTES
    num_rows = last - first
    most_rows = _MOST_ROWS if depth % _ALIASED_WIDTH else _MOST_ALIASED
    tile_rows = num_rows if _WIDE_ROWS < num_rows <= most_rows else _TILE_ROWS
    rest = num_rows % tile_rows
    num_wide = int(num_panels == _WIDE_PANELS and 0 < rest <= _WIDE_ROWS)
    num_narrow = ((num_rows + tile_rows - 1) // tile_rows - num_wide) * num_panels
    ahead_step = num_panels * PANEL * _WEIGHT_BYTES // (num_narrow + num_wide)
    ahead = task[WEIGHTS] + following * panel_bytes
    for tile in range(num_narrow + num_wide):
        row = first + tile // num_panels * tile_rows
        taken = panel + tile % num_panels * int(tile < num_narrow)
        place = taken * PANEL * REAL_BYTES
        _multiply_tile(
            1 if tile < num_narrow else _WIDE_PANELS,
            min(tile_rows, last - row),
            task[ROWS] + row * depth * REAL_BYTES,
            task[WEIGHTS] + taken * panel_bytes,
            depth,
            task[BIAS] + place,
            task[OUT] + row * out_stride + place,
            out_stride,
            ahead + tile * depth * ahead_step,
            ahead_step,
        )


def _multiply(address: Any) -> None:
    """Multiply panels that no other thread has taken, until there are none."""
    task = array_at(address, TASK_FIELDS)
    panel = take(task.ctypes.data, _WIDE_PANELS)
    while panel < task[NUM_PANELS]:
        # Taken before these are done, so that it can be loaded meanwhile.
        following = take(task.ctypes.data, _WIDE_PANELS)
        num_panels = min(_WIDE_PANELS, task[NUM_PANELS] - panel)
        for first in range(0, task[NUM_ROWS], _GROUP_ROWS):
            last = min(first + _GROUP_ROWS, task[NUM_ROWS])
            _multiply_panels(task, panel, num_panels, following, first, last)
        panel = following


multiply: Final = compiled_callback(_multiply, _FOLDER, team_tasks.SIGNATURE)
"""Address of what every thread of a team calls with the address of one task."""
