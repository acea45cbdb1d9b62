"""
The decorators of all compiled functions of the suffix drafter.

Arrays are not counted in and out: that would be an atomic operation per array and call, more than
half of what a proposal takes. Compiled functions therefore make no arrays and keep none; Python
holds what it passes until they return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from numba.core import cgutils, types
from numba.extending import intrinsic

from paceline import compiled_code

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Integers(Sized, Protocol):
    """An array of ``int32``, as compiled functions see it."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...
    def __iter__(self) -> Iterator[int]: ...


class Reals(Sized, Protocol):
    """An array of ``float64``, as compiled functions see it."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


def _compiled_files() -> list[Path]:
    files = sorted(Path(__file__).parent.glob("suffix*.py"))
    return [path for path in files if b"@compiled" in path.read_bytes() or path == Path(__file__)]


_FOLDER: Final = compiled_code.code_folder(_compiled_files())


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function compiled as part of the compiled functions that call it."""
    return compiled_code.compiled_part(function, _nrt=False)


def compiled_entry(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function compiled at its first call from Python, or read from the disk then."""
    return compiled_code.compiled_entry(function, _FOLDER, _nrt=False)


def _prefetch(_context: object, array: Any, _index: object) -> tuple[Any, Callable[..., Any]]:
    """Return type and generator of LLVM's prefetch of what will be read, for all cache levels."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        compiled_code.write_prefetch(builder, pointer, level=3)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Final = cast(Callable[[Integers, int], None], intrinsic(_prefetch))
"""Called from compiled code: start to load the cache line of an index, which may be any number."""
