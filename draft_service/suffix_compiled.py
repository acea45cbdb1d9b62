"""
The decorator of all compiled functions of the suffix drafter; what is compiled is kept on disk.

numba keeps compiled code beside its source, or where ``NUMBA_CACHE_DIR`` says, and compiles anew
when the file of a function has changed, but not when a function that it calls has. Here the folder
is therefore named for the text of all the files together. Where no folder can be written, each
process compiles for itself: a slower start, nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar, cast

import numba

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


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("suffix*.py")):
        content = path.read_bytes()
        if b"@compiled" in content:
            digest.update(content)
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    user_folder = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return (Path(chosen) if chosen else Path(user_folder) / "paceline" / "numba") / _digest()


_CACHE_FOLDER: Final = str(_cache_folder())


@contextmanager
def _caching_in(folder: str) -> Iterator[None]:
    config = vars(numba.config)
    former = config["CACHE_DIR"]
    config["CACHE_DIR"] = folder
    try:
        yield
    finally:
        config["CACHE_DIR"] = former


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function compiled as part of the compiled functions that call it."""
    return cast(Callable[Parameters, Result], numba.njit(error_model="numpy")(function))


def compiled_entry(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function compiled at its first call from Python, or read from the disk then."""
    with _caching_in(_CACHE_FOLDER):
        try:
            dispatcher = numba.njit(cache=True, error_model="numpy")(function)
        except RuntimeError:  # "no locator available": no folder can be written
            dispatcher = numba.njit(error_model="numpy")(function)
    return cast(Callable[Parameters, Result], dispatcher)
