"""What a verifier last said about its load, decoded when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.generation import VerifierLoad
from gateway.verifier_codec import load_from_proto
from paceline.v1.verify_service_pb2 import LoadReport

ANNOUNCE_SECONDS: Final = 0.1
"""Least time between two announcements. A report comes with every step; nobody needs as many."""


IDLE: Final = VerifierLoad()


class LoadReports:
    """The newest report. The first one after a pause is announced at once, the last one always."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce
        self._message: LoadReport | None = None
        self._decoded = IDLE
        self._pause: asyncio.TimerHandle | None = None
        self._is_news = False

    @property
    def current(self) -> VerifierLoad:
        """The load now."""
        if self._message is not None:
            self._decoded, self._message = load_from_proto(self._message), None
        return self._decoded

    def take(self, message: LoadReport) -> None:
        """Take in a report."""
        self._message = message
        if self._pause is None:
            self._begin_pause()
        else:
            self._is_news = True

    def reset(self, load: VerifierLoad = IDLE) -> None:
        """Begin anew, with nothing to announce: the verifier is another one, or has gone."""
        self._message, self._decoded, self._is_news = None, load, False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _end_pause(self) -> None:
        self._pause = None
        if self._is_news:
            self._is_news = False
            self._begin_pause()

    def _begin_pause(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(ANNOUNCE_SECONDS, self._end_pause)
        self._announce()
