"""
Bars: what each drafter gains on the demonstration model, batch 1, T = 0, all on this machine.

The same prompts run without drafts and with a drafter, in turns, on a line that has no other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from bench.bar import Bar
from bench.comparison import compare
from bench.demo_line import BUILD
from bench.draft_process import draft_process
from bench.drafter_flags import drafter_flags
from bench.prompts import DRAFTER_PROMPTS, BenchPrompt, Category
from paceline.async_client import AsyncClient
from paceline.cli.line import NO_DRAFTER, Line, LinePlan
from paceline.cli.model_source import demo_model
from paceline.cli.terminal import progress, say
from paceline.errors import EngineFailed

REPETITIONS: Final = 3
TARGETS: Final[Mapping[Category, float]] = {
    "code edit": 4.5,
    "json extraction": 2.8,
    "code": 1.4,
    "prose": 1.5,
}
DRAFTERS: Final[Mapping[str, tuple[Category, ...]]] = {
    "suffix": tuple(TARGETS),
    "composite": tuple(TARGETS),
    "onnx": ("prose",),
}
"""Each with the work that it is measured on."""
ONNX_PROSE_TARGET: Final = 1.3

Speedups = dict[tuple[str, Category], list[float]]


async def measure() -> list[Bar]:
    """Return the median speed-up of each kind of work, with the better of suffix and composite."""
    speedups: Speedups = defaultdict(list)
    for drafter, categories in DRAFTERS.items():
        await _measure_drafter(drafter, categories, speedups)
    return _bars(speedups)


async def _measure_drafter(
    drafter: str, categories: Sequence[Category], speedups: Speedups
) -> None:
    """
    Measure on a line with this drafter alone.

    On shared cores a drafter slows down the steps, and a verifier learns what steps cost from all.
    """
    async with AsyncExitStack() as services:
        flags = await drafter_flags(drafter)
        address = await services.enter_async_context(draft_process(*flags, name=drafter))
        plan = LinePlan(
            model=await demo_model(),
            log_folder=BUILD / "logs",
            draft=NO_DRAFTER,
            verify_arguments=(f"--pools={drafter}={address}",),
            gateway_arguments=("--default-pool", drafter),
        )
        line = await services.enter_async_context(Line(plan))
        client = await services.enter_async_context(AsyncClient(line.address))
        for prompt in DRAFTER_PROMPTS:
            if prompt.category in categories:
                speedup = await _measure_prompt(client, prompt, drafter)
                speedups[drafter, prompt.category].append(speedup)


async def _measure_prompt(client: AsyncClient, prompt: BenchPrompt, drafter: str) -> float:
    """Return the speed-up of one prompt; raises ``EngineFailed`` if drafting changes a token."""
    async with progress(f"{prompt.name}: {REPETITIONS} runs without drafts and with {drafter}"):
        compared = await compare(client, prompt, REPETITIONS)
    if not compared.identical_ids:
        raise EngineFailed(f"{prompt.name}: other token ids with {drafter}")
    length = compared.mean_acceptance_length
    what = f"{prompt.name} ({prompt.category}), {drafter}"
    say(f"{what}: x{compared.speedup:.2f}, {length:.2f} per step")
    return compared.speedup


def _bars(speedups: Speedups) -> list[Bar]:
    bars = []
    for category, target in TARGETS.items():
        medians = {
            drafter: statistics.median(speedups[drafter, category])
            for drafter in ("suffix", "composite")
        }
        best = max(medians, key=medians.__getitem__)
        bars.append(Bar(4, f"speed-up, {category}, {best}, T=0", medians[best], target))
    onnx = statistics.median(speedups["onnx", "prose"])
    bars.append(Bar(4, "speed-up, prose, onnx, T=0", onnx, ONNX_PROSE_TARGET))
    return bars
