"""Where the commands write: results to standard output, everything else to standard error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

QUIET_SECONDS: Final = 2.0
"""Whatever takes longer says that it is still at work."""

REPEAT_SECONDS: Final = 10.0


def say(line: str) -> None:
    """Write one line for the person at the terminal."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Write a piece of the result, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


@asynccontextmanager
async def progress(doing: str) -> AsyncIterator[None]:
    """Say what is being done once it takes long, and again every few seconds."""
    task = asyncio.create_task(_repeat(doing, time.monotonic()))
    try:
        yield
    finally:
        task.cancel()


async def _repeat(doing: str, since: float) -> None:
    await asyncio.sleep(QUIET_SECONDS)
    while True:
        say(f"{doing} ... {time.monotonic() - since:.0f} s")
        await asyncio.sleep(REPEAT_SECONDS)
