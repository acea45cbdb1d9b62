"""
Bars: what each drafter gains on the demonstration model, batch 1, T = 0, all on this machine.

The same prompts run without drafts and with each drafter, in turns, on one verifier.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from bench.bar import Bar
from bench.comparison import Run, generate
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
DRAFTERS: Final = ("suffix", "composite", "onnx")
TARGETS: Final[Mapping[Category, float]] = {
    "code edit": 4.5,
    "json extraction": 2.8,
    "code": 1.4,
    "prose": 1.5,
}
ONNX_PROSE_TARGET: Final = 1.3

Speedups = dict[tuple[str, Category], list[float]]


async def measure() -> list[Bar]:
    """Return the median speed-up of each kind of work, with the better of suffix and composite."""
    speedups: Speedups = defaultdict(list)
    async with AsyncExitStack() as services:
        addresses = {
            drafter: await services.enter_async_context(
                draft_process(*await drafter_flags(drafter), name=drafter)
            )
            for drafter in DRAFTERS
        }
        pools = [f"--pools={name}={address}" for name, address in addresses.items()]
        plan = LinePlan(
            model=await demo_model(),
            log_folder=BUILD / "logs",
            draft=NO_DRAFTER,
            verify_arguments=tuple(pools),
            gateway_arguments=("--default-pool", DRAFTERS[0]),
        )
        line = await services.enter_async_context(Line(plan))
        client = await services.enter_async_context(AsyncClient(line.address))
        for prompt in DRAFTER_PROMPTS:
            await _measure_prompt(client, prompt, speedups)
    return _bars(speedups)


async def _measure_prompt(client: AsyncClient, prompt: BenchPrompt, speedups: Speedups) -> None:
    runs: dict[str, list[Run]] = defaultdict(list)
    async with progress(f"{prompt.name}: {REPETITIONS} runs without drafts and with each drafter"):
        for repetition in range(REPETITIONS + 1):
            for drafter in ("", *DRAFTERS):
                num_tokens = prompt.max_tokens if repetition else 16
                run = await generate(
                    client,
                    prompt.text,
                    num_tokens,
                    "on" if drafter else "off",
                    pool=drafter or None,
                )
                if repetition:
                    runs[drafter].append(run)
    for drafter in DRAFTERS:
        if {run.token_ids for run in runs[drafter]} != {run.token_ids for run in runs[""]}:
            raise EngineFailed(f"{prompt.name}: other token ids with {drafter}")
        speedup = _speedup(runs[""], runs[drafter])
        length = statistics.median(run.speculation.mean_acceptance_length for run in runs[drafter])
        say(f"{prompt.name} ({prompt.category}), {drafter}: x{speedup:.2f}, {length:.2f} per step")
        speedups[drafter, prompt.category].append(speedup)


def _speedup(plain: Sequence[Run], drafted: Sequence[Run]) -> float:
    return statistics.median(
        fast.tokens_per_second / slow.tokens_per_second
        for slow, fast in zip(plain, drafted, strict=True)
    )


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
