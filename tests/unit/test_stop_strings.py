"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import Scanned, StopStrings


def scan(pieces: list[str], stops: list[str], *, include_stop: bool = False) -> Scanned:
    """Return all text that is released, and the match, for text in pieces."""
    finder = StopStrings(stops, include_stop=include_stop)
    texts: list[str] = []
    for piece in pieces:
        scanned = finder.push(piece)
        texts.append(scanned.text)
        if scanned.matched is not None:
            return Scanned("".join(texts), scanned.matched)
    return Scanned("".join(texts) + finder.flush())


def naive(text: str, stops: list[str], *, include_stop: bool) -> Scanned:
    """Return the same from the whole text: the first to complete, then the longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return Scanned(text)
    end, negative_length, stop = min(found)
    return Scanned(text[: end if include_stop else end + negative_length], stop)


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize(
    "pieces", [["one END two"], ["one E", "ND two"], ["one ", "E", "N", "D", " two"]]
)
def test_text_ends_at_a_stop_string_wherever_the_pieces_are_cut(
    pieces: list[str], include_stop: bool
) -> None:
    """B038."""
    expected = "one END" if include_stop else "one "

    assert scan(pieces, ["END"], include_stop=include_stop) == Scanned(expected, "END")


def test_only_text_that_may_begin_a_stop_string_is_held_back() -> None:
    finder = StopStrings(["</s>"], include_stop=False)

    assert finder.push("a < b </") == Scanned("a < b ")
    assert finder.push("p>") == Scanned("</p>")
    assert finder.push("tail <") == Scanned("tail ")
    assert finder.flush() == "<"


def test_the_stop_string_that_completes_first_wins() -> None:
    assert scan(["abcd"], ["bcd", "bc"]) == Scanned("a", "bc")
    assert scan(["xyabz"], ["ab", "yab"]) == Scanned("x", "yab")


def test_matches_are_passed_over_while_stopping_is_not_allowed() -> None:
    finder = StopStrings(["aa"], include_stop=False)

    assert finder.push("aa", may_stop=False) == Scanned("a")
    assert finder.push("a") == Scanned("", "aa")


@given(
    text=st.text(alphabet="ab<", max_size=40),
    stops=st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    include_stop=st.booleans(),
)
def test_any_pieces_give_what_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    """B038: a naive search over the whole text is the oracle."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(borders)]

    scanned = scan(pieces, stops, include_stop=include_stop)

    assert scanned == naive(text, stops, include_stop=include_stop)
