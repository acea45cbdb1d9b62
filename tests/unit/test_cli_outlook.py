"""When a command that sends many requests gives up."""

from __future__ import annotations

import pytest

from paceline.cli.outlook import MIN_FAILURES, Outlook
from paceline.errors import ConfigurationError, DeadlineExceeded, EngineFailed, Overloaded


def fail(outlook: Outlook, times: int) -> None:
    """Let some requests fail alike."""
    for _ in range(times):
        outlook.note_failure(DeadlineExceeded("too late"))


def test_enough_first_failures_alike_leave_no_hope() -> None:
    outlook = Outlook()
    fail(outlook, MIN_FAILURES - 1)

    with pytest.raises(ConfigurationError, match="4 requests all failed with DEADLINE_EXCEEDED"):
        outlook.note_failure(DeadlineExceeded("too late"))


def test_one_answer_is_hope_enough() -> None:
    outlook = Outlook()
    fail(outlook, MIN_FAILURES - 1)
    outlook.note_answer()

    fail(outlook, 10)


def test_failures_of_several_kinds_are_no_pattern() -> None:
    outlook = Outlook()
    outlook.note_failure(Overloaded("full"))
    outlook.note_failure(EngineFailed("fault"))

    fail(outlook, 10)
