"""When commands that send many requests should give up: nothing was answered, nothing will be."""

from __future__ import annotations

from typing import Final

from paceline.errors import ConfigurationError, DeadlineExceeded, PacelineError
from paceline.status import status_code

MIN_FAILURES: Final = 4
"""Failures alike that leave no hope: enough to rule out one unlucky request or two."""


class Outlook:
    """Watches how the requests of one run end."""

    def __init__(self) -> None:
        self._has_answer = False
        self._num_failed = 0
        self._codes: set[str] = set()

    def note_answer(self) -> None:
        """Take in that a request was answered: there is hope from now on."""
        self._has_answer = True

    def note_failure(self, error: PacelineError) -> None:
        """Take in a failure; raises ``ConfigurationError`` once there is no hope."""
        self._num_failed += 1
        self._codes.add(status_code(error).name)
        if not self._has_answer and self._num_failed >= MIN_FAILURES and len(self._codes) == 1:
            raise ConfigurationError(
                f"stopped: the first {self._num_failed} requests all failed with "
                f"{min(self._codes)} and none was answered: {error.message}"
            )


def too_slow(error: DeadlineExceeded) -> ConfigurationError:
    """Return the error of a command whose very first requests took too long."""
    return ConfigurationError(
        f"stopped: no request was answered in time: {error.message}; allow more with --timeout"
    )
