"""
What a step costs, learned from served steps: seconds by rows and context.

Per context bucket the table holds an exponential mean per row count. Reading it interpolates
between the row counts seen and never falls with more rows: where measurements do, the nearest curve
that does not is taken, so that one dear measurement does not stay for ever. What was measured often
and lately counts most. Outliers (a stolen core, a page fault) are clamped.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify_service.engine.isotonic import isotonic

MIN_WEIGHT = 0.08
"""Weight of one step in the mean once enough are known; the first ones average evenly."""
CLAMP = 1.5
"""One step moves the mean as if it had taken at most this many times the mean."""

EXPLORED_ROWS = 8
"""A step may have this many rows more than any seen, or a quarter, at the cost expected of them."""

CONTEXT_BUCKET_EDGES = tuple(256 * 2**doubling for doubling in range(13))
"""256 tokens to a million: all sequences of a step together."""

SETTLED_COUNT = 16
"""Measurements after which one more moves a mean by little, unless it was forgotten meanwhile."""
READ_EVERY = 8
"""Steps of settled means after which the curve is made anew; making it costs 1 % of a fast step."""

MOST_TRUST = 12.0
"""A mean counts as this many measurements at most."""
TRUST_HALF_LIFE = 512
"""Steps after which a mean that was not measured again counts half."""
LEAST_TRUST = 0.01

Curve = NDArray[np.float64]


@dataclass(slots=True)
class _Mean:
    seconds: float
    count: int
    measured_at: int
    """The number of the step that was measured last."""

    def trust(self, now: int) -> float:
        age = (now - self.measured_at) / TRUST_HALF_LIFE
        return max(min(self.count, MOST_TRUST) * math.exp2(-age), LEAST_TRUST)


@dataclass(frozen=True, slots=True)
class CostRecord:
    """What one row count costs in one context bucket; what is kept across restarts."""

    bucket: int
    num_rows: int
    seconds: float
    count: int


class CostTable:
    """Seconds per step by number of rows and context tokens."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._means: dict[int, dict[int, _Mean]] = {}
        """By context bucket and rows."""
        self._num_steps = 0
        self._is_seeding = False
        self._points: dict[int, _Points] = {}
        self._curves: dict[int, Curve] = {}
        self._num_unread = 0
        """Steps recorded since the curves were made."""

    def record(self, num_rows: int, context_tokens: int, seconds: float) -> None:
        """Learn from one step without prefill; steps too short for the clock tell nothing."""
        if seconds <= 0 or num_rows > self.max_rows:
            return
        self._num_steps += 1
        bucket = _bucket(context_tokens)
        means = self._means.setdefault(bucket, {})
        known = means.get(num_rows)
        is_settled = known is not None and self._is_settled(known)
        if known is None:
            means[num_rows] = _Mean(seconds, 1, self._num_steps)
        elif self._is_seeding:
            known.seconds = min(known.seconds, seconds)
        else:
            known.count += 1
            clamped = min(seconds, known.seconds * CLAMP)
            known.seconds += max(MIN_WEIGHT, 1 / known.count) * (clamped - known.seconds)
            known.measured_at = self._num_steps
        self._num_unread += 1
        if not is_settled or self._num_unread >= READ_EVERY:
            self._num_unread = 0
            self._points.clear()
            self._curves.clear()

    def _is_settled(self, mean: _Mean) -> bool:
        """Return whether one more measurement changes the curve by little."""
        was_lately = self._num_steps - mean.measured_at <= TRUST_HALF_LIFE
        return mean.count > SETTLED_COUNT and was_lately and not self._is_seeding

    @contextmanager
    def seeding(self) -> Iterator[None]:
        """Keep the least of what is recorded within: disturbances only ever add to a cost."""
        self._is_seeding = True
        try:
            yield
        finally:
            self._is_seeding = False

    def forget(self) -> None:
        """Start afresh, as after a warm-up."""
        self._means.clear()
        self._points.clear()
        self._curves.clear()

    def records(self) -> list[CostRecord]:
        """Return everything that was learned."""
        return [
            CostRecord(bucket, num_rows, mean.seconds, mean.count)
            for bucket, means in self._means.items()
            for num_rows, mean in means.items()
        ]

    def restore(self, records: list[CostRecord]) -> None:
        """Take over what was learned before; rows measured since are measured anew."""
        for each in records:
            if each.num_rows <= self.max_rows:
                mean = _Mean(each.seconds, each.count, self._num_steps)
                self._means.setdefault(each.bucket, {})[each.num_rows] = mean
        self._points.clear()
        self._curves.clear()

    def curve(self, context_tokens: int) -> Curve:
        """Return the cost of 0, 1, ... ``max_rows`` rows, never falling; index 0 equals index 1."""
        bucket = _bucket(context_tokens)
        curve = self._curves.get(bucket)
        if curve is None:
            curve = _interpolate(self._seeded(bucket), self.max_rows)
            self._curves[bucket] = curve
        return curve

    def seconds(self, num_rows: int, context_tokens: int) -> float:
        """Return the expected cost of a step."""
        return float(self.curve(context_tokens)[min(num_rows, self.max_rows)])

    def _seeded(self, bucket: int) -> _Points | None:
        # What a bucket has not seen it borrows from its neighbours, the nearest first.
        points = self._points_of(bucket) if bucket in self._means else None
        for other in sorted(self._means, key=lambda index: (abs(index - bucket), index)):
            if points is None:
                points = self._points_of(other)
            elif other != bucket:
                points = points.with_gaps_filled(self._points_of(other))
        return points

    def _points_of(self, bucket: int) -> _Points:
        points = self._points.get(bucket)
        if points is None:
            means = sorted(self._means[bucket].items())
            trusts = [mean.trust(self._num_steps) for _, mean in means]
            points = self._points[bucket] = _Points(
                np.array([num_rows for num_rows, _ in means], np.int64),
                np.array([mean.seconds for _, mean in means]),
                np.array(trusts),
            )
        return points


@dataclass(frozen=True, slots=True)
class _Points:
    """What some row counts cost."""

    rows: NDArray[np.int64]  # [num_points], ascending
    seconds: Curve  # [num_points]
    trusts: NDArray[np.float64]  # [num_points]

    def with_gaps_filled(self, other: _Points) -> _Points:
        """Return these points and those of another context, scaled to them, where there is none."""
        covered = (self.rows >= other.rows[0]) & (self.rows <= other.rows[-1])
        scale = 1.0
        if covered.any():
            there = np.interp(self.rows[covered], other.rows, other.seconds)
            scale = self.seconds[covered].sum() / there.sum()
        is_new = ~np.isin(other.rows, self.rows, assume_unique=True)
        rows = np.concatenate((self.rows, other.rows[is_new]))
        seconds = np.concatenate((self.seconds, other.seconds[is_new] * scale))
        trusts = np.concatenate((self.trusts, other.trusts[is_new]))
        order = np.argsort(rows)
        return _Points(rows[order], seconds[order], trusts[order])


def _bucket(context_tokens: int) -> int:
    return bisect_left(CONTEXT_BUCKET_EDGES, context_tokens)


def _interpolate(points: _Points | None, max_rows: int) -> Curve:
    rows = np.arange(max_rows + 1, dtype=np.float64)
    if points is None:
        return 1.0 + 0.05 * np.maximum(rows, 1.0)
    curve = np.interp(rows, points.rows, isotonic(points.seconds, points.trusts))
    curve[0] = curve[min(1, max_rows)]
    _extrapolate(curve, rows, int(points.rows[0]), int(points.rows[-1]))
    return curve


def _extrapolate(curve: Curve, rows: Curve, first: int, last: int) -> None:
    # A little beyond what was seen the curve goes on as before: whoever tries it, learns the truth.
    # Further on every row costs its full share, so that a step too far is a small one.
    start = max(last // 2, first)
    if start < last:
        slope = (curve[last] - curve[start]) / (last - start)
        reach = min(last + max(EXPLORED_ROWS, last // 4), len(curve) - 1)
        curve[last : reach + 1] = curve[last] + slope * (rows[last : reach + 1] - last)
        last = reach
    curve[last:] = curve[last] * (rows[last:] / max(last, 1))
