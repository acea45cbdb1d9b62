"""The whole line as real processes on the tiny model, while parts of it are killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import paceline
from tests.doubles.service_process import ServiceProcess, service_process
from tests.doubles.up_command import TINY_MODEL

pytestmark = pytest.mark.timeout(300)

PROMPT = """class Basket:
    def __init__(self, items):
        self.items = items

    def total(self):
        return sum(self.items)


class Basket:
    def __init__(self, items):
"""
NUM_STREAMS = 8
MAX_TOKENS = 120


@dataclass
class RunningLine:
    """Addresses and processes of one line."""

    stack: AsyncExitStack
    gateway: str = ""
    draft_address: str = ""
    draft: ServiceProcess | None = None
    verifiers: list[ServiceProcess] = field(default_factory=list)

    async def start_draft(self, listen: str) -> None:
        """Start, or start again, the draft service."""
        self.draft = await self.stack.enter_async_context(
            service_process("draft_service", "--listen", listen)
        )
        self.draft_address = (await self.draft.event("ready"))["address"]


@asynccontextmanager
async def running_line(num_verifiers: int = 1) -> AsyncIterator[RunningLine]:
    """Start a draft service, verifiers and a gateway on the tiny model."""
    model = ("--model", str(TINY_MODEL))
    async with AsyncExitStack() as stack:
        line = RunningLine(stack)
        await line.start_draft("127.0.0.1:0")
        addresses: list[str] = []
        for _ in range(num_verifiers):
            pools = ("--pools", f"ngram={line.draft_address}")
            verifier = await stack.enter_async_context(
                service_process("verify_service", *model, *pools, "--draft-budget", "fixed")
            )
            line.verifiers.append(verifier)
            addresses.append((await verifier.event("ready"))["address"])
        links = [part for address in addresses for part in ("--verifiers", address)]
        gateway = await stack.enter_async_context(
            service_process("gateway", *model, *links, "--default-pool", "ngram")
        )
        line.gateway = (await gateway.event("ready"))["address"]
        yield line


async def _stream(client: paceline.AsyncClient, seed: int, drafting: str) -> paceline.Generation:
    mode: dict[str, str] = {"drafting": drafting}
    return await client.generate(
        PROMPT + " " * (seed % 4),
        max_tokens=MAX_TOKENS,
        temperature=0.0 if seed % 2 else 0.8,
        seed=seed,
        timeout=120,
        return_token_ids=True,
        **mode,  # type: ignore[arg-type]  # one of the literals
    )


async def _all(line: RunningLine, drafting: str) -> list[paceline.Generation]:
    async with paceline.AsyncClient(line.gateway) as client:
        streams = (_stream(client, seed, drafting) for seed in range(NUM_STREAMS))
        return list(await asyncio.gather(*streams))


@pytest.mark.asyncio
async def test_eight_streams_survive_the_drafters_death_and_use_the_next_one() -> None:
    """B062, B073: SIGKILL in mid-stream costs no token; its successor drafts again."""
    async with running_line() as line:
        plain = await _all(line, "off")

        running = asyncio.create_task(_all(line, "on"))
        await asyncio.sleep(0.3)
        assert line.draft is not None
        line.draft.signal(signal.SIGKILL)
        drafted = await running
        await line.start_draft(line.draft_address)
        await asyncio.sleep(2.5)
        again = await _all(line, "on")

    ids = [each.token_ids for each in plain]
    assert [each.token_ids for each in drafted] == ids
    assert [each.token_ids for each in again] == ids
    assert sum(each.speculation.num_accepted_draft_tokens for each in again) > NUM_STREAMS
    assert all(each.speculation.num_draft_tokens == 0 for each in plain)


@pytest.mark.asyncio
async def test_a_killed_verifier_costs_no_request_and_no_token() -> None:
    """Running requests go on at the other verifier with the same ids."""
    async with running_line(num_verifiers=2) as line:
        plain = await _all(line, "off")

        running = asyncio.create_task(_all(line, "on"))
        await asyncio.sleep(0.3)
        line.verifiers[0].signal(signal.SIGKILL)
        moved = await running

    assert [each.token_ids for each in moved] == [each.token_ids for each in plain]


@pytest.mark.asyncio
async def test_a_verifier_told_to_stop_finishes_what_it_runs() -> None:
    """SIGTERM drains: running streams end as they would have, and the process exits with 0."""
    async with running_line(num_verifiers=2) as line:
        plain = await _all(line, "off")

        running = asyncio.create_task(_all(line, "on"))
        await asyncio.sleep(0.2)
        line.verifiers[0].signal(signal.SIGTERM)
        finished = await running

        assert await line.verifiers[0].exit_code() == 0
    assert [each.token_ids for each in finished] == [each.token_ids for each in plain]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("draft_service", ()),
        ("verify_service", ("--model", str(TINY_MODEL))),
        ("gateway", ("--model", str(TINY_MODEL), "--verifiers", "127.0.0.1:9")),
    ],
)
async def test_no_stream_waits_while_what_the_start_made_is_searched_for_garbage(
    module: str, arguments: tuple[str, ...]
) -> None:
    async with service_process(module, *arguments) as service:
        settled = await service.event("heap_settled")

    assert settled["num_objects"] > 10_000


def test_the_tiny_model_is_small() -> None:
    """What the repository carries for tests stays below 2 MB."""
    size = sum(path.stat().st_size for path in Path(TINY_MODEL).iterdir())

    assert size <= 2_000_000
