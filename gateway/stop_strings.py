"""Finding stop strings in text that arrives in pieces. It knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a piece of text released."""

    text: str
    """Text that is decided: no stop string can begin in it."""
    matched: str | None = None
    """The stop string that ended the text."""


class StopStrings:
    """
    Holds back exactly the text that may begin a stop string, and ends at the first complete one.

    The first is the one that completes first, the longest of those that complete at the same
    character; so the result does not depend on how the text was cut into pieces. Each character
    costs one step of one Knuth-Morris-Pratt automaton per stop string.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> Scanned:
        """Return the text that became decided; with ``may_stop`` off, matches are passed over."""
        for index, character in enumerate(text):
            matched = self._step(character)
            if matched is not None and may_stop:
                decided = self._held + text[: index + 1]
                self._held = ""
                end = len(decided) if self._include_stop else len(decided) - len(matched)
                return Scanned(decided[:end], matched)
        undecided = max((automaton.num_matched for automaton in self._automata), default=0)
        decided = self._held + text
        self._held = decided[len(decided) - undecided :]
        return Scanned(decided[: len(decided) - undecided])

    def flush(self) -> str:
        """Return what was held back: the text has ended."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        matched = None
        for automaton in self._automata:
            if automaton.step(character) and matched is None:
                matched = automaton.pattern
        return matched


class _Automaton:
    """``num_matched``: length of the longest proper prefix of the pattern that the text ends in."""

    __slots__ = ("_borders", "num_matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.num_matched = 0
        self._borders = _borders(pattern)

    def step(self, character: str) -> bool:
        """Read one character; return whether the pattern is complete with it."""
        matched = self.num_matched
        while matched and self.pattern[matched] != character:
            matched = self._borders[matched - 1]
        if self.pattern[matched] == character:
            matched += 1
        is_complete = matched == len(self.pattern)
        self.num_matched = self._borders[matched - 1] if is_complete else matched
        return is_complete


def _borders(pattern: str) -> list[int]:
    """Return for each prefix the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        length += pattern[index] == pattern[length]
        borders[index] = length
    return borders
