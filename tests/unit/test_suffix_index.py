"""The index grows without losing anything, and stays small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.suffix_blocks import NUM_LISTED
from draft_service.suffix_index import SuffixIndex
from draft_service.suffix_states import (
    BLOCKS_AT,
    BLOCKS_SIZE,
    ENTRY_SIZE,
    STATE_SIZE,
    STATES_AT,
    WANTED_SIZE,
)
from tests.doubles.suffix_contexts import count_of, followers_of

pytestmark = pytest.mark.timeout(300)  # the first test may compile


def text_like(num_tokens: int) -> list[int]:
    """Return random tokens, few of which make up most of the text, as in real ones."""
    drawn = np.random.default_rng(5).pareto(0.6, num_tokens) + 1
    return [int(token_id) for token_id in np.minimum(drawn, 5_000)]


def test_an_index_is_empty_at_first() -> None:
    index = SuffixIndex()

    assert len(index) == 0
    assert count_of(index, [1]) == 0
    assert followers_of(index, [1]) == []


def test_growing_keeps_all_contexts() -> None:
    """The arrays and the hash table are made anew many times on the way."""
    text = text_like(20_000)
    grown, at_once = SuffixIndex(), SuffixIndex(expected_tokens=len(text))
    for start in range(0, len(text), 7):
        grown.extend(text[start : start + 7])
    at_once.extend(text)

    for start in range(0, len(text) - 4, 97):
        for length in (1, 2, 4):
            context = text[start : start + length]
            assert count_of(grown, context) == count_of(at_once, context) > 0
            assert followers_of(grown, context) == followers_of(at_once, context)


def test_one_token_that_follows_thousands_of_contexts_at_once_has_room() -> None:
    """Every suffix of the repetition gets a second follower with the last token."""
    index = SuffixIndex()

    index.extend([7] * 5_000)
    index.extend([8])

    assert followers_of(index, [7] * 4_000) == [8, 7] or followers_of(index, [7] * 4_000) == [7, 8]
    assert count_of(index, [7, 8]) == 1


def appended_within_what_was_asked(index: SuffixIndex, text: list[int]) -> bool:
    """Append tokens; return whether none took more room than was asked for before."""
    memory = index.memory
    for token_id in text:
        index.extend([token_id])
        memory = index.memory
        if memory[BLOCKS_SIZE] > memory[WANTED_SIZE]:
            return False
    return int(memory[BLOCKS_AT] + memory[BLOCKS_SIZE]) <= len(memory)


@pytest.mark.parametrize("num_followers", [1, 2, 4, 8, 12, 24, 48, 96, 192])
def test_a_state_that_gets_a_follower_and_is_then_copied_has_room(num_followers: int) -> None:
    """After a separator the latest state is an old one, which the same token may split."""
    index = SuffixIndex()
    for number in range(num_followers):
        index.extend([1, 2, 2, 10 + number])
    index.separate()

    assert appended_within_what_was_asked(index, [1, 2, 2, 2])


@given(
    texts=st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=4),
    followers=st.lists(st.integers(10, 40), max_size=30),
    context=st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_no_token_takes_more_room_than_was_asked_for(
    texts: list[list[int]], followers: list[int], context: list[int]
) -> None:
    index = SuffixIndex()
    spread = [token_id for follower in followers for token_id in (*context, follower)]
    for text in (spread, *texts):
        assert appended_within_what_was_asked(index, text)
        index.separate()


def test_the_follower_used_last_comes_first_in_the_end() -> None:
    index = SuffixIndex()

    index.extend([1, 5, 1, 6] + [1, 7] * 8)

    assert followers_of(index, [1])[0] == 7


def test_any_number_of_followers_is_kept_while_the_list_holds_those_used_last() -> None:
    """From the state itself to a line of its own, and to tables of several sizes."""
    index = SuffixIndex()
    for number in range(1, 300):
        index.extend([1, 1_000 + number])

        assert sorted(followers_of(index, [1])) == list(range(1_001, 1_001 + number))

    index.extend([1, 1_150, 2] * 8)

    assert followers_of(index, [1])[0] == 1_150


def test_a_context_split_from_another_takes_its_followers_along() -> None:
    """First 8 always follows 7, so that both lead on alike; then 8 also follows 6."""
    for number in (1, 2, 3, 5, 8, 9, 13, 40):
        index = SuffixIndex()
        for follower in range(100, 100 + number):
            index.extend([7, 8, follower])

        index.extend([6, 8, 99])

        assert sorted(followers_of(index, [7, 8])) == list(range(100, 100 + number))
        assert sorted(followers_of(index, [8])) == list(range(99, 100 + number))
        assert count_of(index, [8]) == number + 1


@pytest.mark.parametrize("num_tokens", [0, 5_000])
def test_neither_a_state_nor_a_list_is_across_two_cache_lines(num_tokens: int) -> None:
    index = SuffixIndex()

    index.extend(text_like(num_tokens))

    line = 64 // index.memory.itemsize
    assert index.memory.ctypes.data % 64 == 0
    assert index.memory[STATES_AT] % line == index.memory[BLOCKS_AT] % line == 0
    assert line % STATE_SIZE == NUM_LISTED * ENTRY_SIZE % line == 0


def test_tokens_can_be_read_again() -> None:
    index = SuffixIndex()
    index.extend([4, 5])
    index.separate()
    index.extend([6, 2**31 - 1])

    assert index.tokens(3).tolist() == [6, 2**31 - 1]
    assert count_of(index, [6, 2**31 - 1]) == 1


@pytest.mark.parametrize("num_tokens", [30_000, 100_000])
def test_a_token_takes_less_than_a_hundred_bytes(num_tokens: int) -> None:
    index = SuffixIndex()

    index.extend(text_like(num_tokens))

    assert index.num_bytes < 100 * num_tokens


def test_the_worst_text_is_bounded_too() -> None:
    """Two states and three edges per token are the most that an automaton needs."""
    index = SuffixIndex()
    text = [token_id for length in range(1, 200) for token_id in [*range(length), 500 + length]]

    index.extend(text)

    assert index.num_bytes < 190 * len(text)
