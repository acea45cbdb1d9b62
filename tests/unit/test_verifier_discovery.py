"""Verifiers behind a name: found when they come, kept while they are of use, then let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from gateway.verifier_discovery import VerifierDiscovery, addresses_behind
from gateway.verifier_link import VerifierLink

pytestmark = pytest.mark.asyncio


@dataclass(eq=False)
class FakeLink:
    """A link that is connected until it is told otherwise."""

    address: str
    is_usable: bool = True
    num_sequences: int = 0
    is_running: bool = False

    async def run(self) -> None:
        """Run until cancelled."""
        self.is_running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_running = False


@dataclass
class Bench:
    """A name whose addresses a test chooses."""

    addresses: set[str] = field(default_factory=set)
    links: dict[str, FakeLink] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    async def resolve(self, name: str) -> set[str]:
        """Return the addresses of the moment."""
        assert name == "verifiers:1"
        return set(self.addresses)

    def open(self, address: str) -> VerifierLink:
        """Return a fake link."""
        self.links[address] = FakeLink(address)
        return cast(VerifierLink, self.links[address])

    def close(self, link: VerifierLink) -> None:
        """Remember."""
        self.closed.append(link.address)


@asynccontextmanager
async def looking(bench: Bench) -> AsyncIterator[None]:
    discovery = VerifierDiscovery(
        ["verifiers:1"],
        open_link=bench.open,
        close_link=bench.close,
        resolve=bench.resolve,
        look_seconds=0.01,
    )
    task = asyncio.create_task(discovery.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def some_looks() -> None:
    await asyncio.sleep(0.1)


async def test_each_address_gets_one_link_and_new_ones_are_found() -> None:
    bench = Bench({"a:1"})
    async with looking(bench):
        await some_looks()
        first = set(bench.links)
        bench.addresses.add("b:1")
        await some_looks()

        assert first == {"a:1"}
        assert set(bench.links) == {"a:1", "b:1"}
        assert all(link.is_running for link in bench.links.values())


async def test_a_draining_verifier_keeps_its_link_until_its_sequences_have_ended() -> None:
    bench = Bench({"a:1"})
    async with looking(bench):
        await some_looks()
        link = bench.links["a:1"]
        link.is_usable, link.num_sequences = False, 3
        bench.addresses.clear()
        await some_looks()
        kept = link.is_running
        link.num_sequences = 0
        await some_looks()

        assert kept
        assert bench.closed == ["a:1"]
        assert not link.is_running


async def test_a_name_server_that_fails_cuts_no_working_link() -> None:
    bench = Bench({"a:1"})
    async with looking(bench):
        await some_looks()
        bench.addresses.clear()
        await some_looks()

        assert bench.closed == []
        assert bench.links["a:1"].is_running


async def test_an_address_that_comes_back_gets_a_new_link() -> None:
    bench = Bench({"a:1"})
    async with looking(bench):
        await some_looks()
        before = bench.links["a:1"]
        before.is_usable = False
        bench.addresses.clear()
        await some_looks()
        bench.addresses.add("a:1")
        await some_looks()

        assert bench.links["a:1"] is not before
        assert bench.links["a:1"].is_running


async def test_every_link_ends_with_the_discovery() -> None:
    bench = Bench({"a:1", "b:1"})
    async with looking(bench):
        await some_looks()

    assert not any(link.is_running for link in bench.links.values())


async def test_names_are_resolved_to_all_their_addresses() -> None:
    assert "127.0.0.1:7" in await addresses_behind("localhost:7")
    assert await addresses_behind("no-such-host.invalid:7") == frozenset()
