"""The index agrees with a plain search through its texts."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.suffix_index import SuffixIndex
from tests.doubles.suffix_contexts import count_of, followers_of

pytestmark = pytest.mark.timeout(300)  # the first test may compile

TEXTS = st.integers(min_value=0, max_value=4).flatmap(
    lambda largest: st.lists(
        st.lists(st.integers(min_value=0, max_value=largest), max_size=30), min_size=1, max_size=4
    )
)


def indexed(texts: list[list[int]]) -> SuffixIndex:
    """Return an index of texts, each separated from the next."""
    index = SuffixIndex()
    for text in texts:
        index.extend(text)
        index.separate()
    return index


def contexts_of(texts: list[list[int]]) -> Counter[tuple[int, ...]]:
    """Return how often each string of tokens occurs, found by looking everywhere."""
    return Counter(
        tuple(text[start:end])
        for text in texts
        for start in range(len(text))
        for end in range(start + 1, len(text) + 1)
    )


@given(texts=TEXTS)
def test_every_context_is_counted_as_often_as_it_occurs(texts: list[list[int]]) -> None:
    index = indexed(texts)

    for context, count in contexts_of(texts).items():
        assert count_of(index, context) == count


@given(texts=TEXTS)
def test_every_context_is_followed_by_what_follows_its_occurrences(texts: list[list[int]]) -> None:
    """No context leads on from one text into the next."""
    index = indexed(texts)
    followers: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for context in contexts_of(texts):
        if len(context) > 1:
            followers[context[:-1]].add(context[-1])

    for context in contexts_of(texts):
        found = followers_of(index, context)
        assert len(found) == len(set(found))
        assert set(found) == followers[context]


@given(
    turns=st.lists(
        st.tuples(st.integers(min_value=0, max_value=1), st.integers(min_value=2, max_value=40)),
        max_size=150,
    )
)
def test_contexts_may_have_many_followers(turns: list[tuple[int, int]]) -> None:
    """Two tokens lead on to dozens, in contexts that are split while they have some."""
    text = [token_id for turn in turns for token_id in turn]
    index = indexed([text])
    counts, behind = Counter[tuple[int, ...]](), defaultdict[tuple[int, ...], set[int]](set)
    for length in (1, 2, 3):
        for end in range(length, len(text) + 1):
            context = tuple(text[end - length : end])
            counts[context] += 1
            behind[context].update(text[end : end + 1])

    for context, count in counts.items():
        assert count_of(index, context) == count
        assert set(followers_of(index, context)) == behind[context]


@given(texts=TEXTS, absent=st.lists(st.integers(min_value=0, max_value=5), min_size=1, max_size=5))
def test_a_context_that_never_occurred_is_not_found(
    texts: list[list[int]], absent: list[int]
) -> None:
    if tuple(absent) not in contexts_of(texts):
        assert count_of(indexed(texts), absent) == 0


@given(
    text=st.lists(st.integers(min_value=0, max_value=3), max_size=200),
    cuts=st.lists(st.integers(min_value=0, max_value=200), max_size=5),
)
def test_a_text_in_pieces_gives_the_index_of_the_whole(text: list[int], cuts: list[int]) -> None:
    whole, pieces = SuffixIndex(expected_tokens=300), SuffixIndex()
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]

    whole.extend(text)
    for start, end in pairwise(bounds):
        pieces.extend(text[start:end])

    for context in contexts_of([text[:40]]):
        assert count_of(whole, context) == count_of(pieces, context)
        assert followers_of(whole, context) == followers_of(pieces, context)
