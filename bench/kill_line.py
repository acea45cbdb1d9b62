"""A line of processes on the tiny model whose parts can be killed, and streams on it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.demo_line import BUILD, TINY_MODEL
from paceline.async_client import AsyncClient
from paceline.cli.address import bindable_address
from paceline.cli.health import wait_until_serving
from paceline.cli.service_process import ServiceProcess, ServiceSpec
from paceline.errors import EngineFailed, PacelineError
from paceline.events import Delta

POOL: Final = "ngram"
START_SECONDS: Final = 120.0
STREAM_SECONDS: Final = 300.0
MAX_TOKENS: Final = 120
FAILURE_PAUSE_SECONDS: Final = 0.2
"""Or a line that is gone would be asked thousands of times a second."""

PROMPT: Final = """class Basket:
    def __init__(self, items):
        self.items = items

    def total(self):
        return sum(self.items)


class Basket:
    def __init__(self, items):
"""


async def started(name: str, module: str, folder: Path, *arguments: str) -> ServiceProcess:
    """Start a service on a free port of the loopback."""
    address = bindable_address("127.0.0.1:0", "--listen")
    spec = ServiceSpec(name, module, address, arguments, folder / f"{name}.log")
    process = ServiceProcess(spec)
    await restarted(process)
    return process


async def restarted(process: ServiceProcess) -> None:
    """
    Start a process, or start it again at its address, and wait until it serves.

    Raises ``EngineFailed`` as soon as it ends instead, and if it takes ``START_SECONDS``.
    """
    await process.start()
    serving = asyncio.create_task(wait_until_serving(process.spec.address))
    ended = asyncio.create_task(process.wait())
    await asyncio.wait((serving, ended), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    is_serving, has_ended = serving.done(), ended.done()
    for task in (serving, ended):
        task.cancel()
    await asyncio.gather(serving, ended, return_exceptions=True)
    if has_ended:
        raise EngineFailed(process.obituary())
    if not is_serving:
        raise EngineFailed(f"{process.spec.name} does not serve after {START_SECONDS:g} s")


async def kill(process: ServiceProcess) -> float:
    """End a process with SIGKILL; return when."""
    process.signal(signal.SIGKILL)
    at = time.monotonic()
    await process.wait()
    return at


@dataclass(slots=True)
class KillLine:
    """One draft service, several verifiers, one gateway."""

    draft: ServiceProcess
    verifiers: list[ServiceProcess]
    gateway: ServiceProcess

    async def until_whole(self, client: AsyncClient) -> None:
        """Return once the gateway can use every verifier and every verifier the pool."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                (model,) = await client.models()
                is_ready = model.num_ready_verifiers == len(self.verifiers)
                if is_ready and all(pool.available for pool in model.draft_pools):
                    return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def kill_line(
    num_verifiers: int, folder: Path = BUILD / "kill-line"
) -> AsyncIterator[KillLine]:
    """Run the line until the block ends."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    model = ("--model", str(TINY_MODEL))
    async with AsyncExitStack() as stack:

        async def owned(name: str, module: str, *arguments: str) -> ServiceProcess:
            process = await started(name, module, folder, *arguments)
            stack.push_async_callback(process.stop, 0.0)
            return process

        draft = await owned("draft", "draft_service", "--drafter", POOL)
        pools = ("--pools", f"{POOL}={draft.spec.address}", "--draft-budget", "fixed")
        room = ("--max-running", "64")
        verifiers = [
            await owned(f"verifier-{number}", "verify_service", *model, *pools, *room)
            for number in range(num_verifiers)
        ]
        addresses = ",".join(verifier.spec.address for verifier in verifiers)
        gateway = await owned(
            "gateway", "gateway", *model, "--verifiers", addresses, "--default-pool", POOL
        )
        yield KillLine(draft, verifiers, gateway)


@dataclass(slots=True)
class Stream:
    """One request, asked again and again, and what came of it."""

    number: int
    expected: tuple[int, ...] = ()
    events: list[float] = field(default_factory=list)
    """When tokens came."""
    num_requests: int = 0
    num_changed: int = 0
    failures: list[str] = field(default_factory=list)

    async def once(self, client: AsyncClient, *, drafts: bool) -> tuple[int, ...]:
        """Ask once and return the ids."""
        token_ids: list[int] = []
        async for event in client.stream(
            PROMPT + " " * (self.number % 4),
            max_tokens=MAX_TOKENS,
            temperature=0.0 if self.number % 2 else 0.8,
            seed=self.number,
            ignore_eos=True,
            drafting="on" if drafts else "off",
            return_token_ids=True,
            timeout=STREAM_SECONDS,
        ):
            if isinstance(event, Delta):
                token_ids.extend(event.token_ids)
                self.events.append(time.monotonic())
        return tuple(token_ids)

    async def run(self, client: AsyncClient, stop: asyncio.Event) -> None:
        """Ask until told to stop."""
        while not stop.is_set():
            self.num_requests += 1
            try:
                token_ids = await self.once(client, drafts=True)
            except PacelineError as error:
                self.failures.append(error.message)
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)
                continue
            self.num_changed += token_ids != self.expected

    def longest_pause(self, start: float, end: float) -> float:
        """Return the longest time without tokens that overlaps a stretch of time."""
        inside = [at for at in self.events if start <= at <= end]
        before = max((at for at in self.events if at < start), default=start)
        after = min((at for at in self.events if at > end), default=end)
        edges = [before, *inside, after]
        return max(later - earlier for earlier, later in pairwise(edges))


@asynccontextmanager
async def running_streams(client: AsyncClient, num_streams: int) -> AsyncIterator[Sequence[Stream]]:
    """Run streams whose right answers are known from decoding without drafts."""
    streams = [Stream(number) for number in range(num_streams)]
    for stream, expected in zip(
        streams,
        await asyncio.gather(*(stream.once(client, drafts=False) for stream in streams)),
        strict=True,
    ):
        stream.expected = expected
        stream.events.clear()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(stream.run(client, stop))
        try:
            yield streams
        finally:
            stop.set()
