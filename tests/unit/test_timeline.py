"""A timeline covers everything in a bounded number of points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.timeline import Timeline

COUNTS = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.lists(COUNTS, max_size=300), st.integers(2, 17))
def test_nothing_is_lost_whatever_is_merged(
    entries: list[tuple[int, int]], max_points: int
) -> None:
    timeline = Timeline(max_points)
    for time_ns, counts in enumerate(entries):
        timeline.add(time_ns, *counts)
    points = list(timeline)

    assert len(points) <= max_points
    assert timeline.num_entries == len(entries)
    assert [timeline.total(i) for i in range(2)] == [sum(e[i] for e in entries) for i in range(2)]
    start = 0
    for point in points:
        covered = entries[start : start + point.num_entries]
        start += point.num_entries
        assert point.time_ns == start - 1
        assert point.sums == [sum(counts[i] for counts in covered) for i in range(2)]


@given(st.integers(0, 16))
def test_a_short_run_keeps_each_entry(number: int) -> None:
    timeline = Timeline(16)
    for time_ns in range(number):
        timeline.add(time_ns, 1)

    assert [point.num_entries for point in timeline] == [1] * number
