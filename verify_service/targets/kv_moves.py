"""KV moves of many sequences, gathered so that a device makes them in one go."""

from __future__ import annotations

from collections.abc import Sequence


class PendingMoves:
    """Moves that count as made, and are made before anything reads or writes their slots."""

    def __init__(self) -> None:
        self._sources: list[int] = []
        self._destinations: list[int] = []
        self._written: set[int] = set()

    def add(self, sources: Sequence[int], destinations: Sequence[int]) -> bool:
        """
        Take moves over; False: what is pending has to be made first.

        All pending reads happen before the first write. That gives what one move after the other
        gives as long as no slot is read or written after it was written.
        """
        if self._written.intersection(sources) or self._written.intersection(destinations):
            return False
        self._sources += sources
        self._destinations += destinations
        self._written.update(destinations)
        return True

    def take(self) -> tuple[list[int], list[int]]:
        """Return, and forget, the pending sources and destinations."""
        taken = self._sources, self._destinations
        self._sources, self._destinations = [], []
        self._written.clear()
        return taken
