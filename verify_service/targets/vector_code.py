"""LLVM's vector instructions for compiled functions, where numba has no words for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import binding, ir
from numba.core import cgutils

LANES: Final = 16
"""Numbers of a vector; where registers hold fewer, LLVM takes several."""
REAL_BYTES: Final = 4

has_avx512: Final = bool(binding.get_host_cpu_features().get("avx512f"))
"""Whether there are 32 registers of ``LANES`` numbers each; AVX2 has 16 of 8."""

INT64: Final = ir.IntType(64)
REAL: Final = ir.FloatType()
REALS: Final = ir.VectorType(REAL, LANES)

code: Final[Any] = cgutils
_INT32: Final = ir.IntType(32)


def choose_count(builder: Any, count: Any, most: int, write: Callable[[int], None]) -> None:
    """Generate what ``write`` does for each count from 1 to ``most``; for others nothing."""
    end = builder.append_basic_block("end")
    choice = builder.switch(count, end)
    for number in range(1, most + 1):
        block = builder.append_basic_block(f"count{number}")
        choice.add_case(INT64(number), block)
        builder.position_at_end(block)
        write(number)
        builder.branch(end)
    builder.position_at_end(end)


def pointers(builder: Any, address: Any, count: int, step: Any, kind: Any) -> list[Any]:
    """Return pointers to values that lie ``step`` bytes apart."""
    offsets = [builder.mul(step, INT64(index)) for index in range(count)]
    return [pointer(builder, builder.add(address, offset), kind) for offset in offsets]


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Return the pointer to a value at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def broadcast(builder: Any, value: Any) -> Any:
    """Return a vector of one value, of any type."""
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(nothing, value, _INT32(0))
    lanes = ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, nothing, lanes)


def multiply_add(builder: Any, factor: Any, other: Any, total: Any, *, is_exact: bool) -> Any:
    """
    Return ``factor * other + total`` of vectors.

    ``is_exact``: rounded once on every CPU; else only where that is one instruction.
    """
    name = "fma" if is_exact else "fmuladd"
    kind = ir.FunctionType(REALS, [REALS, REALS, REALS])
    function = code.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, [factor, other, total])


def sum_of_lanes(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers, in an order that the CPU likes."""
    kind = ir.FunctionType(REAL, [REAL, REALS])
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    function = code.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [REAL(-0.0), vector], fastmath=("reassoc",))
