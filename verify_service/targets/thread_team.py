"""
Runs compiled functions on torch's own threads.

torch keeps a team of OpenMP threads for each thread that calls it. Another team beside it would
compete with it for the cores, the more so as the threads of both spin between two operations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import torch

Fork: TypeAlias = Callable[[int, int, int], None]
"""Calls a function with an argument, both as addresses, on some threads; returns when all have."""

_OPENMP_OF: Final = ("libtorch_global_deps.so", "libtorch_global_deps.dylib")
_THREADS: Final = ThreadPoolExecutor(thread_name_prefix="multiply")
_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run_on_team(function: int, argument: int, *, alone: bool = False) -> None:
    """
    Call the function at address ``function`` with ``argument`` on every thread of torch's team.

    The calling thread is one of them, and the only one if ``alone``: for what takes less time than
    waking another. Without the interpreter's lock in either case.
    """
    count = 1 if alone else torch.get_num_threads()
    if count == 1:
        _FUNCTION(function)(argument)
        return
    (_openmp() or fork_anew)(function, argument, count)


def fork_anew(function: int, argument: int, count: int) -> None:
    """Do it on threads of this module's own, where torch was built without OpenMP."""
    call = _FUNCTION(function)
    started = [_THREADS.submit(call, argument) for _ in range(count - 1)]
    call(argument)
    for each in started:
        each.result()


@cache
def _openmp() -> Fork | None:
    """Return ``GOMP_parallel`` of the very library that torch uses; LLVM's has it too."""
    for name in _OPENMP_OF:
        path = Path(torch.__file__).parent / "lib" / name
        try:
            function = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
        no_flags = 0
        return lambda address, argument, count: function(address, argument, count, no_flags)
    return None
