"""A whole line in processes of its own on a simulated target: it can be restarted and scraped."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 90.0
STOP_SECONDS = 60.0


@dataclass(slots=True)
class LineProcess:
    """One service: its address stays the same when it is restarted."""

    module: str
    arguments: Sequence[str]
    log: Path
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    admin: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; its log goes to a file."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self.module, "--log-format=json"),
                *(f"--listen={self.address}", f"--admin-listen={self.admin}", *self.arguments),
                stderr=log,
            )

    async def until_ready(self) -> None:
        """Return once it says that it is ready."""
        async with asyncio.timeout(START_SECONDS):
            while not (await self.get("/readiness")).startswith("HTTP/1.1 200"):  # noqa: ASYNC110 another process
                await asyncio.sleep(0.1)

    async def restart(self) -> int:
        """End it with SIGTERM, start it again, and return its exit code."""
        code = await self.stop(signal.SIGTERM)
        await self.start()
        await self.until_ready()
        return code

    async def stop(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        if self.process is None:
            raise LookupError(f"{self.module} does not run")
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(STOP_SECONDS):
            return await self.process.wait()

    async def metrics(self) -> str:
        """Return what Prometheus would read."""
        head, _, body = (await self.get("/metrics")).partition("\r\n\r\n")
        if not head.startswith("HTTP/1.1 200"):
            raise LookupError(head)
        return body

    async def get(self, path: str) -> str:
        """Return the answer of the admin port; empty when nobody listens."""
        try:
            reader, writer = await asyncio.open_connection(*self.admin.split(":"))
        except OSError:
            return ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()


@asynccontextmanager
async def running(*services: LineProcess) -> AsyncIterator[None]:
    """Start services together and kill what is left of them at the end."""
    async with AsyncExitStack() as stack:
        for service in services:
            await service.start()
            stack.push_async_callback(service.stop, signal.SIGKILL)
        await asyncio.gather(*(service.until_ready() for service in services))
        yield


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def drafter(log_folder: Path, name: str, *arguments: str) -> LineProcess:
    """Return a draft service that is not started yet."""
    return LineProcess("draft_service", (f"--name={name}", *arguments), log_folder / f"{name}.log")


def verifier(log_folder: Path, name: str, model: Path, *arguments: str) -> LineProcess:
    """Return a verifier with a simulated target that is not started yet."""
    fixed = ("--target=simulated", f"--model={model}", "--max-running=32")
    return LineProcess("verify_service", (*fixed, *arguments), log_folder / f"{name}.log")


def gateway(log_folder: Path, name: str, model: Path, *arguments: str) -> LineProcess:
    """Return a gateway that is not started yet."""
    return LineProcess("gateway", (f"--model={model}", *arguments), log_folder / f"{name}.log")
