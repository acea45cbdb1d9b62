"""
Bar: with a step of 40 ms and 5 ms of network each way, the next tree is at the verifier.

Two drafters. One is made from the tiny model: a pass takes a small part of a step, as where the
target is many times the drafter. The other is made from the demonstration model itself: a pass
takes more than half a step on two cores, so that it hardly stays ahead of what is accepted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.bar import Bar
from bench.demo_line import TINY_MODEL
from bench.draft_process import draft_process
from bench.drafter_flags import drafter_flags
from bench.prompts import DRAFTER_PROMPTS
from bench.recordings import Recording, recordings
from bench.replayed_verifier import Pace, ReplayedVerifier, Tally
from paceline.cli.terminal import progress, say

PACE: Final = Pace(step_seconds=0.04, one_way_seconds=0.005, warm_up_steps=8)
TARGETS: Final = {0.0: 0.9, 1.0: 0.8}


@dataclass(frozen=True, slots=True)
class _Setup:
    name: str
    drafter: str
    model: Path | None
    """None: the demonstration model."""


SETUPS: Final = (
    _Setup("tiny, onnx", "onnx", TINY_MODEL),
    _Setup("Gemma 3 270M, onnx", "onnx", None),
)


async def measure() -> list[Bar]:
    """Return how often the tree was there as a step began, and the median wait for it."""
    bars: list[Bar] = []
    for setup in SETUPS:
        flags = await drafter_flags(setup.drafter, setup.model)
        for temperature, target in TARGETS.items():
            recorded = [
                recording
                for recording in await recordings(DRAFTER_PROMPTS, temperature, model=setup.model)
                if recording.category in {"prose", "code"}
            ]
            where = f"{setup.name}, steps of 40 ms, 5 ms one way, T={temperature:g}"
            bars.extend(await _measured(recorded, flags, where, target))
    return bars


async def _measured(
    recorded: Sequence[Recording], flags: Sequence[str], where: str, target: float
) -> list[Bar]:
    tallies: list[Tally] = []
    async with draft_process(*flags) as address:
        for recording in recorded:
            async with progress(f"{recording.name}: {where}"):
                tallies += await ReplayedVerifier([recording], PACE).run(address)
    num_steps = sum(tally.num_steps for tally in tallies)
    num_ready = sum(tally.num_ready for tally in tallies)
    length = sum(tally.num_tokens for tally in tallies) / num_steps
    say(f"{where}: {num_steps} steps, {length:.2f} tokens each")
    behind = [seconds for tally in tallies for seconds in tally.behind_seconds]
    return [
        Bar(4, f"tree at the verifier as the step began, {where}", num_ready / num_steps, target),
        Bar(
            4,
            f"median milliseconds from commit to its first node, {where}",
            statistics.median(behind) * 1000.0,
            0.0,
            "at most",
        ),
    ]
