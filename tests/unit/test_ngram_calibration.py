"""The drafter's probabilities are honest: the verifier spends its rows by them."""

from __future__ import annotations

import inspect
import re
import textwrap
import typing

import pytest

from bench.ngram import Calibration, replay


def words_of(text: str) -> list[int]:
    """Return a number for each word; equal words have equal numbers."""
    numbers: dict[str, int] = {}
    return [
        numbers.setdefault(word, len(numbers)) for word in re.findall(r"\w{1,6}|\s+|[^\w\s]", text)
    ]


@pytest.fixture(scope="module")
def source_text_read_on() -> Calibration:
    """Replay some modules of the standard library from their 500th word on."""
    table = Calibration()
    for module in (inspect, textwrap, typing):
        replay(words_of(inspect.getsource(module))[:4000], 500, table)
    return table


def test_source_text_is_predicted_within_a_few_percent(source_text_read_on: Calibration) -> None:
    assert sum(source_text_read_on.counts) > 5_000
    assert source_text_read_on.error < 0.04


def test_sure_nodes_are_right_and_guesses_rarely(source_text_read_on: Calibration) -> None:
    table = source_text_read_on

    assert table.hits[9] / table.counts[9] > 0.85
    assert table.hits[0] / table.counts[0] < 0.1


def test_a_verbatim_copy_is_soon_taken_for_one() -> None:
    table = Calibration()
    source = words_of(inspect.getsource(textwrap))[:800]

    replay(source * 2, len(source), table)

    assert table.tokens_per_step > 7
    assert table.counts[9] > 0.8 * sum(table.counts[5:])
