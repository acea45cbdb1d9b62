"""Bar of issue 2: how soon ``paceline up --demo`` gives its first token."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Final

from bench.bar import Bar
from bench.demo_line import BUILD
from paceline.async_client import AsyncClient
from paceline.cli.address import bindable_address
from paceline.cli.health import wait_until_serving
from paceline.cli.model_source import demo_model
from paceline.cli.terminal import progress
from paceline.events import Delta

MOST_SECONDS: Final = 300


async def measure() -> list[Bar]:
    """Return the seconds from the command to the first token; the model is converted already."""
    await demo_model()
    address = bindable_address("127.0.0.1:0", "--listen")
    begun = time.perf_counter()
    log_folder = BUILD / "logs" / "first-token"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline", "up", "--demo"),
        *("--listen", address, "--log-dir", str(log_folder)),
    )
    try:
        async with asyncio.timeout(MOST_SECONDS), progress("paceline up --demo"):
            await wait_until_serving(address)
            seconds = await _first_token(address) - begun
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    return [Bar(2, "seconds from `paceline up --demo` to the first token", seconds, 30, "at most")]


async def _first_token(address: str) -> float:
    async with AsyncClient(address) as client:
        async for event in client.stream("Hello", max_tokens=4, return_token_ids=True):
            if isinstance(event, Delta) and event.token_ids:
                return time.perf_counter()
    return float("inf")
