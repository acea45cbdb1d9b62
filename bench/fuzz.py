"""
Bar of issue 3: all sampling options at once, with and without drafts, on the tiny model.

    python -m bench.fuzz
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from bench.bar import Bar
from bench.engine_run import tiny_engine
from bench.option_cases import differences, draw_case
from paceline.cli.terminal import say
from paceline.logs import configure_logging
from verify_service.engine.draft_selection import BudgetMode

NUM_CASES: Final = 2_000
BATCH: Final = 4
SEED: Final = 2


async def measure() -> list[Bar]:
    """Return the share of requests whose answer drafts leave as it is."""
    configure_logging("bench", "error")
    rng = random.Random(SEED)
    plain = tiny_engine(max_running=BATCH)
    drafting = tiny_engine(max_running=BATCH, budget=BudgetMode.FIXED, max_draft_tokens=12)
    wrong: list[str] = []
    for first in range(1, NUM_CASES + 1, BATCH):
        cases = [draw_case(rng.choice, first + index) for index in range(BATCH)]
        found = differences(cases, plain, drafting)
        for line in found:
            say(line)
        wrong += found
        if plain.blocks.num_in_use or drafting.blocks.num_in_use:
            wrong.append("blocks leaked")
    told = f"{NUM_CASES} requests, every option: same answer with drafts (differences)"
    return [Bar(3, told, len(wrong), 0.0, "at most")]


def main() -> None:
    """Print the figure."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.0f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
