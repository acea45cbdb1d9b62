"""Whether a costly drafter is worth asking, from what it has added to the cheap ones' drafts."""

from __future__ import annotations

from typing import Final

_RATE: Final = 0.1
_MIN_SEEN: Final = 12
"""Commits before a judgement."""

_FIRST_PAUSE: Final = 64
_MAX_PAUSE: Final = 1024
"""Commits of a pause; each one that ends in vain is followed by one twice as long."""


class Payoff:
    """The tokens per step that a drafter adds; pauses one that adds too few, then tries again."""

    __slots__ = ("_gain", "_min_gain", "_num_seen", "_pause", "_remaining")

    def __init__(self, min_gain: float) -> None:
        self._min_gain = min_gain
        self._gain = min_gain
        self._num_seen = 0
        self._pause = _FIRST_PAUSE
        self._remaining = 0

    @property
    def is_paused(self) -> bool:
        """Whether the drafter is not to be asked."""
        return self._remaining > 0

    def learn(self, num_tokens_gained: int | None) -> None:
        """Take in one commit; None: the drafter had not been asked before it."""
        if self._remaining:
            self._remaining -= 1
            if not self._remaining:
                self._num_seen = 0
            return
        if num_tokens_gained is None:
            return
        self._num_seen += 1
        self._gain += max(_RATE, 1.0 / self._num_seen) * (num_tokens_gained - self._gain)
        if self._num_seen < _MIN_SEEN:
            return
        if self._gain >= self._min_gain:
            self._pause = _FIRST_PAUSE
            return
        self._remaining = self._pause
        self._pause = min(self._pause * 2, _MAX_PAUSE)
