"""The index finds earlier occurrences of the latest tokens at a cost that does not grow."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from draft_service.ngram_index import Match, NgramIndex


def indexed(token_ids: list[int], *, min_length: int = 1, max_length: int = 16) -> NgramIndex:
    """Return an index that holds some tokens."""
    index = NgramIndex(min_length=min_length, max_length=max_length, expected_len=len(token_ids))
    index.extend(token_ids)
    return index


def random_text(num_tokens: int, *, vocab_size: int) -> list[int]:
    """Return a text of random tokens, always the same."""
    return [
        int(token_id) for token_id in np.random.default_rng(5).integers(vocab_size, size=num_tokens)
    ]


def least_seconds(action: Callable[[], object], attempts: int = 200) -> float:
    """Return the least time that an action took: what it costs on an idle machine."""
    least = float("inf")
    for _ in range(attempts):
        started = time.perf_counter()
        action()
        least = min(least, time.perf_counter() - started)
    return least


def test_an_empty_index_and_a_single_token_match_nothing() -> None:
    assert indexed([]).matches(8) == []
    assert indexed([1]).matches(8) == []


def test_the_longest_occurrence_comes_first_and_of_equals_the_latest() -> None:
    index = indexed([1, 2, 3, 50, 9, 3, 60, 8, 3, 70, 1, 2, 3])

    assert index.matches(8) == [Match(3, 3), Match(1, 9), Match(1, 6)]


def test_matches_shorter_than_the_minimum_are_left_out() -> None:
    index = indexed([1, 2, 3, 50, 9, 3, 60, 1, 2, 3], min_length=3)

    assert index.matches(8) == [Match(3, 3)]


def test_lengths_end_at_the_maximum() -> None:
    index = indexed(list(range(30)) * 2, max_length=8)

    assert index.matches(8) == [Match(8, 30)]


def test_occurrences_beyond_the_limit_are_the_earlier_ones() -> None:
    index = indexed([7, 1, 7, 2, 7, 3, 7, 4, 7])

    assert [match.position for match in index.matches(2)] == [7, 5]


def test_a_long_text_in_bulk_and_token_by_token_give_the_same_matches() -> None:
    token_ids = random_text(40_000, vocab_size=20)
    in_bulk = indexed(token_ids)
    grown = NgramIndex(min_length=1, max_length=16)

    for token_id in token_ids:
        grown.extend([token_id])

    assert in_bulk.matches(8) == grown.matches(8)
    assert in_bulk.matches(8)


def test_appending_costs_the_same_at_10k_and_100k_tokens() -> None:
    """B101: no step looks at the whole history."""
    short = indexed(random_text(10_000, vocab_size=5000))
    long = indexed(random_text(100_000, vocab_size=5000))

    at_10k = least_seconds(lambda: short.extend([7]))
    at_100k = least_seconds(lambda: long.extend([7]))

    assert at_100k < 2 * at_10k + 20e-6


def test_a_wide_window_without_a_match_costs_no_more_than_a_narrow_one() -> None:
    """B109: one failed look-up of the shortest length rules out the longer ones."""
    token_ids = list(range(50_000))
    narrow = indexed(token_ids, min_length=2, max_length=4)
    wide = indexed(token_ids, min_length=2, max_length=64)

    assert wide.matches(8) == narrow.matches(8) == []
    assert least_seconds(lambda: wide.matches(8)) < 2 * least_seconds(lambda: narrow.matches(8))


def test_a_token_repeated_endlessly_stays_cheap() -> None:
    """The worst case for hash chains: every position is an occurrence."""
    index = indexed([7] * 100_000)

    assert least_seconds(lambda: index.matches(8)) < 1e-3
