"""Gathered KV moves against the same moves made one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from verify_service.targets.kv_moves import PendingMoves

SLOTS = 12


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    count = draw(st.integers(1, 4))
    slots = st.integers(0, SLOTS - 1)
    sources = draw(st.lists(slots, min_size=count, max_size=count))
    return sources, draw(st.lists(slots, min_size=count, max_size=count, unique=True))


def made(cache: list[int], sources: Sequence[int], destinations: Sequence[int]) -> None:
    read = [cache[source] for source in sources]
    for value, destination in zip(read, destinations, strict=True):
        cache[destination] = value


@given(calls=st.lists(moves(), max_size=8))
def test_gathered_moves_end_as_one_after_the_other(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    """B049: a path's KV is where its tokens are, however many sequences moved theirs."""
    at_once, gathered = list(range(SLOTS)), list(range(SLOTS))
    pending = PendingMoves()
    for sources, destinations in calls:
        made(at_once, sources, destinations)
        if not pending.add(sources, destinations):
            made(gathered, *pending.take())
            assert pending.add(sources, destinations)
    made(gathered, *pending.take())

    assert gathered == at_once
    assert pending.take() == ([], [])


def test_moves_of_sequences_that_share_no_slot_are_one() -> None:
    pending = PendingMoves()

    assert pending.add([3, 5], [2, 3])
    assert pending.add([9], [8])
    assert pending.take() == ([3, 5, 9], [2, 3, 8])
