"""
What compiled functions need to share a task among the threads of a team.

A task is an array of int64 whose first field counts what has been taken; the others are sizes and
addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

SIGNATURE: Final = "void(CPointer(int64))"
"""Of the functions that every thread of a team calls, with the address of a task."""

array_at: Final[Any] = vars(numba)["carray"]
"""Called from compiled code: the contiguous array of a shape at a pointer."""


def _take(_context: object, address: Any, amount: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: object, builder: Any, _signature: object, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "monotonic")

    return types.int64(address, amount), generate


def _pointer_to(kind: Any) -> Callable[[int], Any]:
    def pointer(_context: object, address: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return pointers(kind)(address), generate

    pointers: Any = types.CPointer
    return cast(Callable[[int], Any], intrinsic(pointer))


take: Final = cast(Callable[[int, int], int], intrinsic(_take))
"""Called from compiled code: add to the number at an address at once, and return the former one."""

reals_at: Final = _pointer_to(types.float32)
integers_at: Final = _pointer_to(types.int64)
"""Called from compiled code: the pointer to float32 or int64 that an address is."""
