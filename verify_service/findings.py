"""What an examination of this machine found: one line each, with cause and fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    FINE = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    cause: str
    fix: str = ""

    def line(self) -> str:
        """Return the finding as one line."""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.level:7}  {self.subject}: {self.cause}{fix}"


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if anything is wrong, else 0; warnings stop nothing."""
    return int(any(finding.level is Level.WRONG for finding in findings))
