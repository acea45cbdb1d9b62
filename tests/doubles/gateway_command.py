"""Runs ``paceline bench`` and ``lossless`` as from a shell."""

from __future__ import annotations

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from paceline.cli.main import main
from tests.doubles.running_gateway import RunningGateway


async def command(name: str, running: RunningGateway, prompts: Path, *flags: str) -> int:
    """Run a command against the gateway, with short answers; return its exit code."""
    fixed = [name, "--address", running.gateway.address, "--prompts", str(prompts)]
    with capture_logs():
        return await asyncio.to_thread(main, [*fixed, "--max-tokens", "12", *flags])
