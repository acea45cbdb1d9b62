"""A service in a process of its own, for tests: waits for its log events, ends it for sure."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

START_SECONDS = 30.0


class ServiceProcess:
    """A running service whose log is JSON lines on standard error."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def event(self, name: str) -> dict[str, Any]:
        """Return the next log entry with this event name, skipping others."""
        return await asyncio.wait_for(self._find(name), START_SECONDS)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for the process to end by itself."""
        await asyncio.wait_for(self._process.communicate(), START_SECONDS)
        return self._process.returncode or 0

    async def _find(self, name: str) -> dict[str, Any]:
        if self._process.stderr is None:
            raise ConnectionError("the process has no standard error")
        async for line in self._process.stderr:
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] == name:
                return entry
        raise ConnectionError(f"the process ended without the event {name}")


@asynccontextmanager
async def service_process(module: str, *arguments: str) -> AsyncIterator[ServiceProcess]:
    """
    Run ``python -m module`` with JSON logs; kill it at the end if it still runs.

    It listens on a free port unless told otherwise: the default one may be somebody's.
    """
    if "--listen" not in arguments:
        arguments = ("--listen", "127.0.0.1:0", *arguments)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "--log-format", "json", *arguments,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield ServiceProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
