"""One service as a child process: its start, its log, its end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TAIL_BYTES: Final = 65_536
_USAGE_ERROR: Final = re.compile(r"^[\w.\- ]+: error: (?P<message>.+)$")
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Refused|Failed|Invalid)\b.*$")


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What to run: ``python -m module --listen address arguments...``."""

    name: str
    module: str
    address: str
    arguments: tuple[str, ...]
    log_path: Path


class ServiceProcess:
    """
    Owns one child process at a time, in a process group of its own.

    A child that lost its parent ends by itself (see ``child``).
    """

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self._process: asyncio.subprocess.Process | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the child, negative for a signal; None while it runs."""
        return self._process.returncode if self._process else None

    @property
    def pid(self) -> int:
        """The process id of the child; 0 before it was started."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start the child, or start it again; its output is appended to the log."""
        spec = self.spec
        with spec.log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "paceline.cli.child", spec.module),
                *("--listen", spec.address, "--log-format", "json", *spec.arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                process_group=0,
            )

    async def wait(self) -> int:
        """Wait for the end of the child and return its exit code."""
        if self._process is None:
            return 0
        return await self._process.wait()

    async def stop(self, grace_seconds: float) -> None:
        """Ask the child to drain; kill it when it takes longer than the grace."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
        await self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child and all that it started, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def obituary(self) -> str:
        """Return in one line how the child ended and what its log says about it."""
        cause = last_error(self.spec.log_path)
        code = self.exit_code or 0
        how = (
            f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        said = f": {cause}" if cause else ""
        return f"{self.spec.name} {how}{said} (log: {self.spec.log_path})"


def last_error(log_path: Path) -> str:
    """Return the message of the last log line about an error; empty if there is none."""
    errors = (error_text(line) for line in reversed(_tail(log_path)))
    return next((error for error in errors if error), "")


def error_text(line: str) -> str:
    """Return the message of a log line about an error; empty for any other line."""
    if line.startswith("{"):
        return _logged_error(line)
    if usage_error := _USAGE_ERROR.match(line):
        return usage_error["message"]
    return line if _EXCEPTION.match(line) else ""


def _logged_error(line: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(entry, dict) or entry.get("level") not in {"error", "critical"}:
        return ""
    detail = entry.get("error") or entry.get("detail") or entry.get("exception") or ""
    last_line = str(detail).strip().rpartition("\n")[2]
    return ": ".join(part for part in (str(entry.get("event", "")), last_line) if part)


def _tail(log_path: Path) -> list[str]:
    try:
        with log_path.open("rb") as log_file:
            log_file.seek(0, os.SEEK_END)
            log_file.seek(max(0, log_file.tell() - _TAIL_BYTES))
            text = log_file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
