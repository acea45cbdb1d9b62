"""The suffix drafter is honest about its probabilities, and no worse than prompt lookup."""

from __future__ import annotations

import inspect
import textwrap
import typing

import pytest

from bench.ngram import Calibration
from bench.suffix import ngram_session, replay, suffix_session
from tests.unit.test_ngram_calibration import words_of

pytestmark = pytest.mark.timeout(300)  # the first test may compile

TEXTS = [words_of(inspect.getsource(module))[:4000] for module in (inspect, textwrap, typing)]


@pytest.fixture(scope="module")
def source_text_read_on() -> Calibration:
    """Replay some modules of the standard library from their 500th word on."""
    table = Calibration()
    for text in TEXTS:
        replay(suffix_session(text[:500]), text, 500, table)
    return table


def test_source_text_is_predicted_within_a_few_percent(source_text_read_on: Calibration) -> None:
    assert sum(source_text_read_on.counts) > 5_000
    assert source_text_read_on.error < 0.04


def test_sure_nodes_are_right_and_guesses_rarely(source_text_read_on: Calibration) -> None:
    table = source_text_read_on

    assert table.hits[9] / table.counts[9] > 0.85
    assert table.hits[0] / table.counts[0] < 0.1


def test_it_drafts_at_least_as_well_as_prompt_lookup(source_text_read_on: Calibration) -> None:
    looked_up = Calibration()
    for text in TEXTS:
        replay(ngram_session(text[:500]), text, 500, looked_up)

    assert source_text_read_on.tokens_per_step > 0.99 * looked_up.tokens_per_step


def test_a_verbatim_copy_is_soon_taken_for_one() -> None:
    table = Calibration()
    source = words_of(inspect.getsource(textwrap))[:800]

    replay(suffix_session(source), source * 2, len(source), table)

    assert table.tokens_per_step > 7
    assert table.counts[9] > 0.8 * sum(table.counts[5:])
