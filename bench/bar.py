"""A figure beside the target that the project promises for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured promise."""

    issue: int
    bar: str
    figure: float
    target: float
    """The figure must be at least this, or at most this where ``bound`` says so."""
    bound: Literal["at least", "at most"] = "at least"

    @property
    def met(self) -> bool:
        """Whether the promise holds."""
        if self.bound == "at least":
            return self.figure >= self.target
        return self.figure <= self.target

    @property
    def shown_target(self) -> str:
        """The target in words."""
        return f"{self.bound} {self.target:g}"
