"""
What a step costs, learned from served steps: seconds by rows and context.

Per context bucket the table holds an exponential mean per row count. Reading it interpolates
between the row counts seen and never falls with more rows. Outliers (a stolen core, a page fault)
are clamped.
"""

from __future__ import annotations

from bisect import bisect_left

MIN_WEIGHT = 0.08
"""Weight of one step in the mean once enough are known; the first ones average evenly."""
CLAMP = 1.5
"""One step moves the mean as if it had taken at most this many times the mean."""

CONTEXT_BUCKET_EDGES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class CostTable:
    """Seconds per step by number of rows and context tokens."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._means: list[dict[int, float]] = [{} for _ in range(len(CONTEXT_BUCKET_EDGES) + 1)]
        self._counts: dict[tuple[int, int], int] = {}
        self._curves: dict[int, list[float]] = {}

    def record(self, num_rows: int, context_tokens: int, seconds: float) -> None:
        """Learn from one step without prefill; steps too short for the clock tell nothing."""
        if seconds <= 0:
            return
        bucket = _bucket(context_tokens)
        means = self._means[bucket]
        count = self._counts[bucket, num_rows] = self._counts.get((bucket, num_rows), 0) + 1
        known = means.get(num_rows)
        if known is None:
            means[num_rows] = seconds
        else:
            clamped = min(seconds, known * CLAMP)
            means[num_rows] = known + max(MIN_WEIGHT, 1 / count) * (clamped - known)
        self._curves.clear()  # Other buckets may have borrowed from this one.

    def forget(self) -> None:
        """Start afresh, as after a warm-up."""
        for means in self._means:
            means.clear()
        self._counts.clear()
        self._curves.clear()

    def curve(self, context_tokens: int) -> list[float]:
        """Return the cost of 0, 1, ... ``max_rows`` rows, never falling; index 0 equals index 1."""
        bucket = _bucket(context_tokens)
        curve = self._curves.get(bucket)
        if curve is None:
            curve = _interpolate(self._seeded(bucket), self.max_rows)
            self._curves[bucket] = curve
        return curve

    def seconds(self, num_rows: int, context_tokens: int) -> float:
        """Return the expected cost of a step."""
        return self.curve(context_tokens)[min(num_rows, self.max_rows)]

    def _seeded(self, bucket: int) -> dict[int, float]:
        # A bucket that has seen little borrows its neighbour's shape, scaled by what they share.
        own = self._means[bucket]
        others = sorted(
            (abs(index - bucket), index)
            for index, means in enumerate(self._means)
            if means and index != bucket
        )
        for _, index in others:
            neighbour = self._means[index]
            shared = own.keys() & neighbour.keys()
            if own and not shared:
                continue
            scale = (
                sum(own[rows] for rows in shared) / sum(neighbour[rows] for rows in shared)
                if shared
                else 1.0
            )
            return {rows: mean * scale for rows, mean in neighbour.items()} | own
        return own


def _bucket(context_tokens: int) -> int:
    return bisect_left(CONTEXT_BUCKET_EDGES, context_tokens)


def _interpolate(means: dict[int, float], max_rows: int) -> list[float]:
    if not means:
        return [1.0 + 0.05 * max(rows, 1) for rows in range(max_rows + 1)]
    known = sorted(means)
    curve = [0.0] * (max_rows + 1)
    for rows in range(1, max_rows + 1):
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            curve[rows] = means[rows]
        elif at == 0:
            curve[rows] = means[known[0]]
        elif at == len(known):
            # Beyond what was seen: as if every further row cost its full share.
            curve[rows] = means[known[-1]] * rows / known[-1]
        else:
            low, high = known[at - 1], known[at]
            share = (rows - low) / (high - low)
            curve[rows] = means[low] + share * (means[high] - means[low])
        curve[rows] = max(curve[rows], curve[rows - 1])
    curve[0] = curve[1]
    return curve
