"""
Bars: decoding without drafts beside transformers on the same weights, and the price of more rows.

Gemma 3 270M, batch 1, greedy; our line and transformers' ``generate`` in turns.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from bench.bar import Bar
from bench.comparison import generate
from bench.demo_line import demo_line
from bench.prompts import DEMO_PROMPTS
from bench.target_step import BLOCK_SIZE, chain
from paceline.async_client import AsyncClient
from paceline.cli.model_source import demo_model
from paceline.cli.terminal import progress, say
from verify_service.targets.target import FlatBatch
from verify_service.targets.torch_model import TorchTarget

REPETITIONS: Final = 3
NUM_TOKENS: Final = 48
PROMPT: Final = DEMO_PROMPTS[2]
TARGETS: Final = {torch.float32: 3.0, torch.bfloat16: 1.6}
CONTEXT_LEN: Final = 512
ROW_TARGETS: Final = {6: 1.3, 16: 2.5}
STEPS: Final = 15


async def measure() -> list[Bar]:
    """Return our decode rate over that of transformers, and the cost of 6 and 16 rows over 1."""
    folder = await demo_model()
    bars = await _beside_transformers(folder)
    return bars + await asyncio.to_thread(_rows, folder)


async def _beside_transformers(folder: Path) -> list[Bar]:
    rates: dict[object, list[float]] = {"ours": [], **{dtype: [] for dtype in TARGETS}}
    async with await demo_line() as line, AsyncClient(line.address) as client:
        token_ids = (await client.tokenize(PROMPT.text)).token_ids
        theirs = {dtype: _Transformers(folder, dtype, token_ids) for dtype in TARGETS}
        for repetition in range(REPETITIONS + 1):
            async with progress(f"plain decoding, run {repetition} of {REPETITIONS}"):
                ours = await generate(client, PROMPT.text, NUM_TOKENS, "off")
                others = {
                    dtype: await asyncio.to_thread(model.tokens_per_second)
                    for dtype, model in theirs.items()
                }
            if repetition:
                rates["ours"].append(ours.tokens_per_second)
                for dtype, rate in others.items():
                    rates[dtype].append(rate)
    for name, values in rates.items():
        say(f"{name}: {statistics.median(values):.2f} tokens/s")
    return [
        Bar(
            3,
            f"tokens/s without drafts over transformers in {str(dtype).removeprefix('torch.')}",
            statistics.median(
                ours / other for ours, other in zip(rates["ours"], rates[dtype], strict=True)
            ),
            target,
        )
        for dtype, target in TARGETS.items()
    ]


class _Transformers:
    """Transformers' own ``generate`` on the same weights."""

    def __init__(self, folder: Path, dtype: torch.dtype, token_ids: tuple[int, ...]) -> None:
        auto: Any = AutoModelForCausalLM
        self._model = auto.from_pretrained(folder, dtype=dtype, local_files_only=True)
        self._prompt = torch.tensor([list(token_ids)])

    def tokens_per_second(self) -> float:
        """Return the decode rate; the prompt's own time is not in it."""
        one, many = self._seconds(1), self._seconds(NUM_TOKENS)
        return (NUM_TOKENS - 1) / (many - one)

    @torch.inference_mode()
    def _seconds(self, num_tokens: int) -> float:
        started = time.perf_counter()
        self._model.generate(
            self._prompt, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False
        )
        return time.perf_counter() - started


def _rows(folder: Path) -> list[Bar]:
    target = TorchTarget.load(folder)
    target.allocate_kv(64, BLOCK_SIZE)
    target.forward(FlatBatch((chain(0, CONTEXT_LEN),)))
    steps = {
        num_rows: partial(target.forward, FlatBatch((chain(CONTEXT_LEN, num_rows),)))
        for num_rows in (1, *ROW_TARGETS)
    }
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in steps}
    for repetition in range(STEPS + 1):
        for num_rows, step in steps.items():
            took = _timed(step)
            if repetition:
                seconds[num_rows].append(took)
    one = statistics.median(seconds[1])
    say(f"one row takes {one * 1e3:.1f} ms")
    return [
        Bar(3, f"{rows} rows over 1 row", statistics.median(seconds[rows]) / one, most, "at most")
        for rows, most in ROW_TARGETS.items()
    ]


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
