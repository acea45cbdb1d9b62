"""The index agrees with a plain search through the text."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from draft_service.ngram_index import Match, NgramIndex

TEXTS = st.integers(min_value=1, max_value=5).flatmap(
    lambda largest: st.lists(st.integers(min_value=0, max_value=largest), max_size=250)
)
UNLIMITED = 1_000


def search(token_ids: list[int], *, min_length: int, max_length: int) -> list[Match]:
    """Return all earlier occurrences of the latest tokens by comparing everywhere."""
    found = []
    for position in range(1, len(token_ids)):
        length = 0
        while (
            length < min(max_length, position)
            and token_ids[position - 1 - length] == token_ids[len(token_ids) - 1 - length]
        ):
            length += 1
        if length >= min_length:
            found.append(Match(length, position))
    return sorted(found, key=lambda match: (match.length, match.position), reverse=True)


@given(
    token_ids=TEXTS,
    cuts=st.lists(st.integers(min_value=0, max_value=250), max_size=3),
    min_length=st.integers(min_value=1, max_value=3),
    max_length=st.integers(min_value=3, max_value=20),
)
def test_all_occurrences_are_found_with_their_lengths(
    token_ids: list[int], cuts: list[int], min_length: int, max_length: int
) -> None:
    index = NgramIndex(min_length=min_length, max_length=max_length)
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]

    for start, end in pairwise(bounds):
        index.extend(token_ids[start:end])

    expected = search(token_ids, min_length=min_length, max_length=max_length)
    assert index.matches(UNLIMITED) == expected
