"""The settings that the budget is compared to, and the search for the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.bar import Bar
from verify_service.engine.draft_selection import BudgetMode

CONCURRENCIES: Final = (1, 2, 4, 8, 16)
FIXED_SIZES: Final = (1, 2, 4, 8, 16, 32)
MAX_NODES: Final = 32


@dataclass(frozen=True, slots=True)
class Setting:
    """How many nodes a sequence verifies each step."""

    budget: BudgetMode
    max_nodes: int
    is_drafted: bool = True


OFF: Final = Setting(BudgetMode.ADAPTIVE, MAX_NODES, is_drafted=False)
ADAPTIVE: Final = Setting(BudgetMode.ADAPTIVE, MAX_NODES)

Measure = Callable[[Sequence[Setting]], Sequence[float]]
"""Returns the goodput of each setting, in tokens per second."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Goodput at one concurrency, in tokens per second."""

    num_streams: int
    off: float
    adaptive: float
    fixed: dict[int, float]
    """By nodes."""

    @property
    def over_best(self) -> float:
        """The budget's goodput divided by the best fixed setting's, no drafts among them."""
        return self.adaptive / max(self.off, *self.fixed.values())

    @property
    def over_off(self) -> float:
        """The budget's goodput divided by that without drafting."""
        return self.adaptive / self.off

    @property
    def row(self) -> str:
        """One line for reading."""
        by_size = sorted(self.fixed.items())
        fixed = ", ".join(f"{size}: {goodput:.0f}" for size, goodput in by_size)
        return (
            f"{self.num_streams:>2} streams: off {self.off:.0f} tok/s, budget {self.adaptive:.0f}, "
            f"fixed {fixed}; {self.over_best:.3f} of the best, {self.over_off:.2f} of off"
        )


def sweep(num_streams: int, measure: Measure) -> Swept:
    """
    Return what each setting serves.

    Fixed sizes are powers of 2 at first; those halfway to the best one's neighbours come then, so
    that the budget meets a fixed setting that was chosen for just this load.
    """
    off, adaptive, *coarse = measure([OFF, ADAPTIVE, *map(_fixed, FIXED_SIZES)])
    fixed = dict(zip(FIXED_SIZES, coarse, strict=True))
    best = max(fixed, key=fixed.__getitem__)
    between = sorted({best - best // 4, best + best // 2} - set(FIXED_SIZES))
    sizes = [size for size in between if size <= MAX_NODES]
    fixed |= zip(sizes, measure([_fixed(size) for size in sizes]), strict=True)
    return Swept(num_streams, off, adaptive, fixed)


def bars(name: str, swept: Sequence[Swept]) -> list[Bar]:
    """Return the promises about a sweep."""
    return [
        Bar(3, f"{name}: budget / best fixed, least", min(e.over_best for e in swept), 0.95),
        Bar(3, f"{name}: budget / off, least", min(e.over_off for e in swept), 0.98),
    ]


def _fixed(size: int) -> Setting:
    return Setting(BudgetMode.FIXED, size)
