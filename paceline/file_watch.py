"""Noticing that files have changed, by their signatures. What to do then is the caller's affair."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Signature = tuple[tuple[int, int, int], ...]


class FileWatch:
    """Files that belong together; they are followed through symbolic links, as Secrets need it."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(paths)
        self._seen = self._signature()

    def has_changed(self) -> bool:
        """Return whether a file differs from the last call, or from the beginning."""
        before, self._seen = self._seen, self._signature()
        return self._seen != before

    def _signature(self) -> Signature:
        return tuple(_signature(path) for path in self.paths)


def _signature(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
