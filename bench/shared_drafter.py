"""Bar: one draft service serves 8 verifiers x 8 sessions about as well as one session alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.bar import Bar
from bench.draft_process import draft_process
from bench.drafter_flags import drafter_flags
from bench.prompts import DRAFTER_PROMPTS
from bench.recordings import Recording, recordings
from bench.replayed_verifier import Pace, ReplayedVerifier, Tally
from paceline.cli.terminal import progress, say

NUM_VERIFIERS: Final = 8
SESSIONS_EACH: Final = 8
PACE: Final = Pace(step_seconds=0.08)
"""The plain step of the demonstration model on two cores."""

DRAFTERS: Final = ("ngram", "suffix")


async def measure() -> list[Bar]:
    """Return acceptance of 64 shared sessions over that of each recording alone, by drafter."""
    recorded = (await recordings(DRAFTER_PROMPTS, 0.0))[:SESSIONS_EACH]
    return [await _compared(drafter, recorded) for drafter in DRAFTERS]


async def _compared(drafter: str, recorded: Sequence[Recording]) -> Bar:
    async with draft_process(*await drafter_flags(drafter)) as address:
        async with progress(f"{drafter}: one session at a time"):
            alone = [
                (await ReplayedVerifier([recording], PACE).run(address))[0]
                for recording in recorded
            ]
        async with progress(f"{drafter}: {NUM_VERIFIERS} verifiers, {SESSIONS_EACH} sessions each"):
            shared = await asyncio.gather(
                *(ReplayedVerifier(recorded, PACE).run(address) for _ in range(NUM_VERIFIERS))
            )
    length_alone = _length(alone)
    length_shared = _length([tally for tallies in shared for tally in tallies])
    say(f"{drafter}: {length_alone:.3f} tokens per step alone, {length_shared:.3f} shared")
    return Bar(
        4,
        f"acceptance with {NUM_VERIFIERS} x {SESSIONS_EACH} sessions over one alone, {drafter}",
        length_shared / length_alone,
        0.95,
    )


def _length(tallies: Sequence[Tally]) -> float:
    return sum(tally.num_tokens for tally in tallies) / sum(tally.num_steps for tally in tallies)
