"""Bars of issue 2: what drafting gains, by kind of work, on Gemma 3 270M at batch 1 and T = 0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from bench.bar import Bar
from bench.comparison import Comparison, compare
from bench.demo_line import demo_line
from bench.prompts import BAR_PROMPTS, Category
from paceline.async_client import AsyncClient
from paceline.cli.terminal import progress, say

REPETITIONS: Final = 5
TARGETS: Final[Mapping[Category, float]] = {
    "code edit": 3.0,
    "json extraction": 2.0,
    "prose": 0.97,
    "code": 0.97,
}


async def measure() -> list[Bar]:
    """Return the lowest speed-up of each kind of work: a promise holds for every prompt."""
    speedups: dict[Category, list[float]] = defaultdict(list)
    async with await demo_line() as line, AsyncClient(line.address) as client:
        await line.draft_pool()
        for prompt in BAR_PROMPTS:
            async with progress(f"{prompt.name}: {REPETITIONS} runs with drafting off and on"):
                comparison = await compare(client, prompt, REPETITIONS)
            say(_told(comparison))
            speedups[prompt.category].append(comparison.speedup)
    return [
        Bar(2, f"speed-up, {category}, batch 1, T=0", min(speedups[category]), target)
        for category, target in TARGETS.items()
    ]


def _told(comparison: Comparison) -> str:
    ids = "identical" if comparison.identical_ids else "DIFFERENT"
    return (
        f"{comparison.prompt.name}: {comparison.tokens_per_second_plain:.1f} -> "
        f"{comparison.tokens_per_second_drafted:.1f} tokens/s, x{comparison.speedup:.2f}, "
        f"{comparison.mean_acceptance_length:.2f} per step, ids {ids}"
    )
