"""
What the gateway costs: CPU per forwarded message, memory per stream.

    python -m bench.gateway_cost

The gateway runs as a process of its own; figures are its CPU time and resident memory as the
system counts them, so that other load on the machine weighs little.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc.aio

from bench.bar import Bar
from bench.demo_line import BUILD, TINY_MODEL
from bench.kill_line import started
from bench.paced_verifier import PacedVerifier, paced_verifier
from paceline.channels import LINK_OPTIONS
from paceline.cli.service_process import ServiceProcess
from paceline.cli.terminal import say
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub

NUM_IDLE: Final = 1000
NUM_STALLED: Final = 50
STALLED_TOKENS: Final = 4096
"""What a stalled reader has not read: an answer of 4096 tokens."""
WARM_SECONDS: Final = 2.0
MEASURED_SECONDS: Final = 6.0
NUM_ROUNDS: Final = 3
"""Gateway and relay in turns: the same code takes a fifth more or less from one minute to the next,
as other guests of the machine come and go."""
STEPS_PER_SECOND: Final = {1: 600, 32: 20}
"""
By streams: some 600 messages a second, each step still one of its own. At fewer, most of the CPU
time is that of threads of the transport which wake up, look and go to sleep again.
"""
TICKS: Final = os.sysconf("SC_CLK_TCK")
SMALL_WINDOW: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384))


@dataclass(slots=True)
class MeasuredGateway:
    """A gateway process in front of a paced verifier."""

    process: ServiceProcess
    verifier: PacedVerifier

    @property
    def cpu_seconds(self) -> float:
        """CPU time so far, user and system."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def resident_bytes(self) -> int:
        """Resident memory now."""
        return int(self._proc("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text(encoding="ascii")


@asynccontextmanager
async def measured_gateway(*, bare: bool = False) -> AsyncIterator[MeasuredGateway]:
    """Run both until the block ends; ``bare``: with a relay that does nothing in its place."""
    folder = BUILD / "gateway-cost"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with paced_verifier() as (verifier, address):
        if bare:
            process = await started("bare-relay", "bench.bare_relay", folder, address)
        else:
            flags = ("--model", str(TINY_MODEL), "--verifiers", address, "--max-running", "2048")
            process = await started("gateway", "gateway", folder, *flags)
        try:
            yield MeasuredGateway(process, verifier)
        finally:
            await process.stop(0.0)


def request(max_tokens: int) -> messages.StreamGenerateRequest:
    """Return a request of many small answers."""
    asked = messages.GenerateRequest(text="def f(x):")
    asked.stopping.max_tokens = max_tokens
    asked.stopping.ignore_eos = True
    asked.output.return_token_ids = True
    return messages.StreamGenerateRequest(request=asked)


@dataclass(frozen=True, slots=True)
class Cost:
    """What forwarding took."""

    cpu_seconds: float
    num_messages: int
    num_tokens: int

    @property
    def microseconds_per_message(self) -> float:
        """CPU time of one message to a client, all that led to it included."""
        return 1e6 * self.cpu_seconds / self.num_messages

    @property
    def tokens_per_core_second(self) -> float:
        """Tokens that one core forwards in a second."""
        return self.num_tokens / self.cpu_seconds


async def forwarding_cost(
    gateway: MeasuredGateway,
    num_streams: int,
    tokens_per_message: int,
    seconds: float = MEASURED_SECONDS,
) -> Cost:
    """Return what a number of running streams costs."""
    pace = gateway.verifier.pace
    pace.step_seconds = 1 / STEPS_PER_SECOND[num_streams]
    pace.tokens_per_step = tokens_per_message
    counted = [0, 0]

    async def read(channel: grpc.aio.Channel) -> None:
        async for event in GenerationServiceStub(channel).StreamGenerate(request(1 << 19)):
            if event.HasField("delta"):
                counted[0] += 1
                counted[1] += len(event.delta.token_ids)

    async with grpc.aio.insecure_channel(gateway.process.spec.address) as channel:
        readers = [asyncio.create_task(read(channel)) for _ in range(num_streams)]
        await asyncio.sleep(WARM_SECONDS)
        before, begun = tuple(counted), gateway.cpu_seconds
        await asyncio.sleep(seconds)
        cpu = gateway.cpu_seconds - begun
        cost = Cost(cpu, counted[0] - before[0], counted[1] - before[1])
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    await _until(lambda: gateway.verifier.num_running == 0)
    return cost


async def idle_bytes(gateway: MeasuredGateway, num_streams: int) -> int:
    """Return the extra memory of streams that wait for their next token."""
    return await _held(gateway, num_streams, request(1 << 19), _idle)


async def stalled_bytes(gateway: MeasuredGateway, num_streams: int) -> int:
    """Return the extra memory of streams whose whole answer is there and nobody reads it."""
    gateway.verifier.pace.step_seconds = 0.02
    gateway.verifier.pace.tokens_per_step = 16
    return await _held(gateway, num_streams, request(STALLED_TOKENS), _all_said)


async def _held(
    gateway: MeasuredGateway,
    num_streams: int,
    asked: messages.StreamGenerateRequest,
    until: Callable[[MeasuredGateway, int], Awaitable[None]],
) -> int:
    """Open streams, read their first event, and return what they add to the gateway's memory."""
    async with grpc.aio.insecure_channel(
        gateway.process.spec.address, options=(*LINK_OPTIONS, *SMALL_WINDOW)
    ) as channel:
        stub = GenerationServiceStub(channel)
        warm = stub.StreamGenerate(asked)
        await warm.read()
        await until(gateway, 1)
        before = gateway.resident_bytes
        calls = [stub.StreamGenerate(asked) for _ in range(num_streams)]
        await asyncio.gather(*(call.read() for call in calls))
        await until(gateway, num_streams + 1)
        held = gateway.resident_bytes - before
        for call in (warm, *calls):
            call.cancel()
    gateway.verifier.pace.is_paused = False
    await _until(lambda: gateway.verifier.num_running == 0)
    return held


async def _idle(gateway: MeasuredGateway, num_streams: int) -> None:
    gateway.verifier.pace.is_paused = True
    await _until(lambda: gateway.verifier.num_running >= num_streams)
    await asyncio.sleep(1.0)


async def _all_said(gateway: MeasuredGateway, num_streams: int) -> None:
    await _until(lambda: gateway.verifier.num_running == 0)
    await asyncio.sleep(1.0)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.05)


async def _costs(num_streams: int) -> float:
    """Return the median cost of a message, in microseconds; say beside it what a relay costs."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(NUM_ROUNDS):
        for bare in costs:
            async with measured_gateway(bare=bare) as process:
                cost = await forwarding_cost(process, num_streams, 1)
            costs[bare].append(cost.microseconds_per_message)
    told = {bare: ", ".join(f"{each:.0f}" for each in sorted(costs[bare])) for bare in costs}
    say(
        f"microseconds of CPU per message, {num_streams} streams: {told[False]}; "
        f"a relay that does nothing: {told[True]}"
    )
    return statistics.median(costs[False])


async def measure() -> list[Bar]:
    """Return the promises about the gateway's cost."""
    one, many = await _costs(1), await _costs(32)
    async with measured_gateway() as gateway:
        runs = await forwarding_cost(gateway, 32, 8)
        stalled = await stalled_bytes(gateway, NUM_STALLED)
        idle = await idle_bytes(gateway, NUM_IDLE)
    told = "gateway CPU per forwarded message, microseconds"
    return [
        Bar(5, f"{told}, 1 stream", one, 220, "at most"),
        Bar(5, f"{told}, 32 streams", many, 220, "at most"),
        Bar(5, "gateway tokens/s per core, 8 a message", runs.tokens_per_core_second, 25_000),
        Bar(5, f"extra memory of {NUM_IDLE} idle streams, MB", idle / 1e6, 200, "at most"),
        Bar(5, "memory of a stalled reader, KiB", stalled / NUM_STALLED / 1024, 64, "at most"),
    ]


def main() -> None:
    """Print the figures."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.1f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
