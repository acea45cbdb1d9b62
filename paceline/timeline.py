"""What happened in a long run, in a bounded number of points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_POINTS: Final = 64
"""As many as a trace viewer shows legibly; making a span of them costs the loop a millisecond."""


@dataclass(slots=True)
class Point:
    """Some consecutive entries, summed up; the time is the last one's, on the wall clock."""

    time_ns: int
    num_entries: int
    sums: list[int]


class Timeline:
    """
    Entries of a few counts each, one point for each until there are too many.

    Then neighbours are merged, and each further point covers twice as many: nothing is dropped, the
    whole run stays covered, and an entry costs the same however long it runs.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._points: list[Point] = []
        self._stride = 1

    def __iter__(self) -> Iterator[Point]:
        return iter(self._points)

    def add(self, time_ns: int, *counts: int) -> None:
        """Add an entry; each has the same counts."""
        last = self._points[-1] if self._points else None
        if last is None or last.num_entries >= self._stride:
            if len(self._points) == self._max_points:
                self._halve()
                self.add(time_ns, *counts)
                return
            self._points.append(Point(time_ns, 1, list(counts)))
            return
        last.time_ns = time_ns
        last.num_entries += 1
        for index, count in enumerate(counts):
            last.sums[index] += count

    def total(self, index: int) -> int:
        """Return the sum of one count over all entries."""
        return sum(point.sums[index] for point in self._points)

    @property
    def num_entries(self) -> int:
        """Entries so far."""
        return sum(point.num_entries for point in self._points)

    def _halve(self) -> None:
        pairs = zip(self._points[::2], self._points[1::2], strict=False)
        merged = [
            Point(
                second.time_ns,
                first.num_entries + second.num_entries,
                [a + b for a, b in zip(first.sums, second.sums, strict=True)],
            )
            for first, second in pairs
        ]
        if len(self._points) % 2:
            merged.append(self._points[-1])
        self._points = merged
        self._stride *= 2
