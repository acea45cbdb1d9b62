"""
Moves large tables in memory to huge pages, where Linux can.

A step of a model streams all its weights once. On pages of 4 KiB that costs a lookup of addresses
every 64 cache lines; matrix libraries allocate theirs without asking for larger ones.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PAGE: Final = 2 << 20
_MIN_BYTES: Final = 32 << 20
"""Smaller areas are the stacks and heaps of threads, which stay mostly empty."""

_MAPS: Final = Path("/proc/self/maps")

_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25
"""Linux 6.1 and later; earlier ones merge pages in the background, in their own time."""


def use_huge_pages() -> int:
    """
    Ask for huge pages for what this process holds in large private areas; return their bytes.

    Areas that are reserved but not in use would be filled: call it before memory is set aside.
    Best effort: what the system refuses stays as it is.
    """
    if not _MAPS.exists():
        return 0
    advise = ctypes.CDLL(None).madvise
    num_bytes = 0
    for start, size in _areas():
        address, length = ctypes.c_void_p(start), ctypes.c_size_t(size)
        if advise(address, length, _MADV_HUGEPAGE) == 0:
            advise(address, length, _MADV_COLLAPSE)
            num_bytes += size
    return num_bytes


def _areas() -> Iterator[tuple[int, int]]:
    """Yield start and size of writable areas without a file, in whole huge pages."""
    for line in os.fsdecode(_MAPS.read_bytes()).splitlines():
        fields = line.split()
        is_anonymous = len(fields) == 5 or fields[5] == "[heap]"
        if not is_anonymous or fields[1] != "rw-p":
            continue
        first, last = (int(address, 16) for address in fields[0].split("-"))
        start, stop = -(-first // _PAGE) * _PAGE, last // _PAGE * _PAGE
        if stop - start >= _MIN_BYTES:
            yield start, stop - start
