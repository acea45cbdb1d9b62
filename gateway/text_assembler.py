"""One output's text: detokenizing, then stop strings. It counts tokens, it keeps no ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.detokenizer import Detokenizer
from gateway.stop_strings import Scanned, StopStrings


class Taken(NamedTuple):
    """What a run of tokens gave."""

    text: str
    num_tokens: int
    """Tokens read: all, or those up to the one that completed the stop string."""
    matched: str | None = None


class TextAssembler:
    """Turns token ids into text that may be shown, and says where a stop string ended it."""

    def __init__(
        self, detokenizer: Detokenizer, stop_strings: StopStrings | None, *, min_tokens: int
    ) -> None:
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._min_tokens = min_tokens
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> Taken:
        """Read tokens; a stop string that completes before ``min_tokens`` tokens is passed over."""
        if self._stop_strings is None:
            return Taken(self._detokenizer.push(token_ids), len(token_ids))
        texts: list[str] = []
        for index, token_id in enumerate(token_ids, 1):
            self._num_tokens += 1
            scanned = self._scan(self._stop_strings, self._detokenizer.push((token_id,)))
            texts.append(scanned.text)
            if scanned.matched is not None:
                return Taken("".join(texts), index, scanned.matched)
        return Taken("".join(texts), len(token_ids))

    def flush(self) -> Taken:
        """Return the rest of the text; it too may hold a stop string."""
        rest = self._detokenizer.flush()
        if self._stop_strings is None:
            return Taken(rest, 0)
        scanned = self._scan(self._stop_strings, rest)
        if scanned.matched is not None:
            return Taken(scanned.text, 0, scanned.matched)
        return Taken(scanned.text + self._stop_strings.flush(), 0)

    def _scan(self, stop_strings: StopStrings, text: str) -> Scanned:
        return stop_strings.push(text, may_stop=self._num_tokens >= self._min_tokens)
