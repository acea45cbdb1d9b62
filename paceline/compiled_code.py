"""
Functions compiled by numba, kept on disk.

numba keeps compiled code beside its source, or where ``NUMBA_CACHE_DIR`` says, and compiles anew
when the file of a function has changed, but not when a function that it calls has. Here the folder
is therefore named for the text of all the files together. Where no folder can be written, each
process compiles for itself: a slower start, nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
from llvmlite import ir

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy"}
_KEPT: Final[list[object]] = []
"""Callbacks whose code has to stay where its address says."""


def code_folder(files: Iterable[Path]) -> str:
    """Return where code is kept that was compiled from ``files`` as they are now."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    user_folder = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    parent = Path(chosen) if chosen else Path(user_folder) / "paceline" / "numba"
    return str(parent / digest.hexdigest()[:16])


def compiled_part(
    function: Callable[Parameters, Result], **options: Any
) -> Callable[Parameters, Result]:
    """Return the function compiled as part of the compiled functions that call it."""
    return cast(Callable[Parameters, Result], numba.njit(**_OPTIONS, **options)(function))


def compiled_entry(
    function: Callable[Parameters, Result],
    folder: str,
    signature: str | None = None,
    **options: Any,
) -> Callable[Parameters, Result]:
    """
    Return the function compiled at its first call from Python, or read from ``folder`` then.

    With ``signature`` there is one version of it, for these types; others are a ``TypeError``.
    """

    @cache
    def dispatcher() -> Callable[Parameters, Result]:
        make = partial(numba.njit, signature, **_OPTIONS, **options)
        return cast(Callable[Parameters, Result], _made(make, function, folder))

    if signature is None:
        return dispatcher()

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return dispatcher()(*args, **kwargs)

    return call


def compiled_callback(
    function: Callable[..., None], folder: str, signature: object, **options: Any
) -> Callable[[], int]:
    """
    Return what gives the address of the function compiled for C to call.

    It is compiled at the first call, or read from ``folder`` then.
    """

    @cache
    def address() -> int:
        make = partial(numba.cfunc, signature, **_OPTIONS, **options)
        made = _made(make, function, folder)
        _KEPT.append(made)
        return int(made.address)

    return address


def write_prefetch(builder: Any, address: Any, level: int) -> None:
    """
    Generate LLVM's prefetch of data to be read, for intrinsics of compiled functions.

    ``address``: a pointer to bytes, of anything; ``level``: 3 for all caches, 2 from the second on.
    """
    number = ir.IntType(32)
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    builder.call(function, [address, number(0), number(level), number(1)])


def _made(make: Callable[..., Any], function: Callable[..., object], folder: str) -> Any:
    with _caching_in(folder):
        try:
            return make(cache=True)(function)
        except RuntimeError:  # "no locator available": no folder can be written
            return make()(function)


@contextmanager
def _caching_in(folder: str) -> Iterator[None]:
    config = vars(numba.config)
    former = config["CACHE_DIR"]
    config["CACHE_DIR"] = folder
    try:
        yield
    finally:
        config["CACHE_DIR"] = former
