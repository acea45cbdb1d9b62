"""
Where in the text a copied passage stands, and where it may go on after a difference.

An edited copy differs here and there from its source: a name replaced, a line put in or left out.
Right after the difference no n-gram matches, but the source is still the best guess.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

from draft_service.ngram_index import SEPARATOR, Match

_MIN_COPY_LENGTH = 6
"""Shorter matches happen by chance; a copy is what matches by this many tokens."""

_MIN_NEARBY_LENGTH = 2
"""Near to where the copy should go on, this length is enough."""

_MIN_STRONGER_LENGTH = 3
"""Matches from this length on are better guesses than going on after a difference."""

_MAX_DIFFERENT = 12
"""After so many tokens that are not in the source the copy has ended."""

_MAX_GAP = 24
"""The copy may leave out so many tokens of its source."""


class Resumption(IntEnum):
    """In which way a copy goes on after a difference."""

    AFTER_GAP = 1
    """Behind the source's next occurrence of the latest token: something was left out."""
    AFTER_ONE = 2
    """Behind one source token: it was replaced by the different ones."""
    IN_PLACE = 3
    """Where the copy stopped: the different ones were put in."""


class CopyCursor:
    """Follows one copied passage through the differences between copy and source."""

    __slots__ = ("_num_different", "_position", "_text")

    def __init__(self, text: array[int], position: int | None = None) -> None:
        self._text = text
        self._position = position  # of the source token that should come next
        self._num_different = 0  # tokens since the copy has left its source

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take note of tokens that are about to be appended to the text."""
        for token_id in token_ids:
            if self._position is None:
                return
            if not self._num_different and self._text[self._position] == token_id:
                self._position += 1
            else:
                self._num_different += 1
            if self._num_different > _MAX_DIFFERENT or self._position >= len(self._text):
                self._position = None

    def join(self, matches: Sequence[Match]) -> list[Match]:
        """Take up the copy that matches show; return them with the guesses where it goes on."""
        for match in matches:
            if match.length >= self._required_length(match.position):
                self._position, self._num_different = match.position, 0
                return list(matches)
        num_stronger = sum(match.length >= _MIN_STRONGER_LENGTH for match in matches)
        return [*matches[:num_stronger], *self._resumptions(), *matches[num_stronger:]]

    def _required_length(self, position: int) -> int:
        expected = self._position
        if expected is not None and expected <= position <= expected + _MAX_GAP:
            return _MIN_NEARBY_LENGTH
        return _MIN_COPY_LENGTH

    def _resumptions(self) -> list[Match]:
        position, text = self._position, self._text
        if position is None or text[position] == SEPARATOR:
            return []
        if not self._num_different:
            return [Match(0, position, Resumption.AFTER_GAP)]
        end = min(position + _MAX_GAP, len(text) - 1)
        latest = text[-1]
        found = [
            Match(0, skipped + 1, Resumption.AFTER_GAP)
            for skipped in range(position, end)
            if text[skipped] == latest
        ][:1]
        if position + 1 < len(text):
            found.append(Match(0, position + 1, Resumption.AFTER_ONE))
        found.append(Match(0, position, Resumption.IN_PLACE))
        return found
