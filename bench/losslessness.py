"""Bars of issue 2: no token changes with drafts, without, or when the drafter is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from bench.bar import Bar
from bench.comparison import Run, generate
from bench.demo_line import demo_line
from bench.prompts import LOSSLESS_PROMPTS
from paceline.async_client import AsyncClient
from paceline.cli.line import Line
from paceline.cli.terminal import progress, say
from paceline.generation_request import DraftingMode

TOKENS_PER_PROMPT: Final = 100
CONCURRENCY: Final = 4
TEMPERATURES: Final = (0.0, 0.8)


async def measure() -> list[Bar]:
    """Return the share of prompts whose ids are the same in all three runs."""
    bars: list[Bar] = []
    async with await demo_line() as line, AsyncClient(line.address) as client:
        for temperature in TEMPERATURES:
            plain = await _answers(client, temperature, "off")
            await line.draft_pool()
            drafted = await _answers(client, temperature, "on")
            interrupted = await _answers(client, temperature, "on", _killer(line))
            num_tokens = sum(len(run.token_ids) for run in plain)
            gain = sum(run.speculation.num_accepted_draft_tokens for run in drafted)
            say(f"T={temperature}: {num_tokens} tokens, of which drafts gave {gain}")
            for name, runs in (("with drafts", drafted), ("drafter killed half way", interrupted)):
                told = f"{num_tokens} tokens at T={temperature}: same ids {name} (share of prompts)"
                bars.append(Bar(2, told, _share_equal(plain, runs), 1.0))
    return bars


async def _answers(
    client: AsyncClient,
    temperature: float,
    drafting: DraftingMode,
    half_way: Callable[[], None] = lambda: None,
) -> list[Run]:
    slots = asyncio.Semaphore(CONCURRENCY)
    finished = 0

    async def answer(seed: int, prompt: str) -> Run:
        nonlocal finished
        async with slots:
            if seed == len(LOSSLESS_PROMPTS) // 2:
                half_way()
            run = await generate(
                client, prompt, TOKENS_PER_PROMPT, drafting, temperature=temperature, seed=seed
            )
            finished += 1
            return run

    async with (
        progress(f"{len(LOSSLESS_PROMPTS)} prompts at T={temperature}, drafting {drafting}"),
        asyncio.TaskGroup() as group,
    ):
        tasks = [
            group.create_task(answer(seed, prompt)) for seed, prompt in enumerate(LOSSLESS_PROMPTS)
        ]
    return [task.result() for task in tasks]


def _killer(line: Line) -> Callable[[], None]:
    def kill() -> None:
        if line.draft is not None:
            line.draft.signal(signal.SIGKILL)

    return kill


def _share_equal(expected: list[Run], actual: list[Run]) -> float:
    pairs = list(zip(expected, actual, strict=True))
    return sum(one.token_ids == other.token_ids for one, other in pairs) / len(pairs)
