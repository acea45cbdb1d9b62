"""``paceline up`` as a process, as a person at a terminal sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from paceline.cli.address import bindable_address

ROOT = Path(__file__).resolve().parents[2]
TINY_MODEL = ROOT / "tests" / "models" / "tiny"
PATIENCE_SECONDS = 120


class UpCommand:
    """A running ``paceline up`` and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address
        self.said: list[str] = []

    async def says(self, text: str) -> str:
        """Wait for a line that holds the text, and return it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := await self._next_line():
                if text in line:
                    return line
        pytest.fail(f"`paceline up` ended without saying {text!r}, but:\n" + "".join(self.said))

    async def ends(self) -> int:
        """Wait for the end and return the exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._next_line():
                pass
            return await self.process.wait()

    def services(self) -> dict[str, int]:
        """Return the process ids of the services, by module."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = [int(pid) for pid in children.read_text(encoding="utf-8").split()]
        return {_module(pid): pid for pid in pids}

    async def _next_line(self) -> str:
        assert self.process.stderr is not None
        line = (await self.process.stderr.readline()).decode()
        self.said.append(line)
        return line


@asynccontextmanager
async def up(log_folder: Path, *arguments: str) -> AsyncIterator[UpCommand]:
    """Run the command on the tiny model; whatever is left of it at the end is killed."""
    address = bindable_address("127.0.0.1:0", "--listen")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline", "up", "--listen", address),
        *("--log-dir", str(log_folder), *arguments),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    command = UpCommand(process, address)
    try:
        yield command
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def gone(pids: list[int]) -> bool:
    """Return whether all processes end within a few seconds."""
    for _ in range(300):
        if not any(_is_running(pid) for pid in pids):
            return True
        await asyncio.sleep(0.1)
    for pid in pids:
        if _is_running(pid):
            os.kill(pid, signal.SIGKILL)
    return False


def _module(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    after = words.index(b"paceline.cli.child") + 1
    return words[after].decode()


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
