"""Links to the verifiers that the settings name by address, as the settings change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from gateway.verifier_link import VerifierLink

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RETIREMENT_LOOK_SECONDS: Final = 0.5


class FixedVerifiers:
    """
    Keeps one link per address.

    A verifier that is no longer named gets no new sequences; its link ends with the last of those
    that run, each of which has a deadline.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        open_link: Callable[[str], VerifierLink],
        close_link: Callable[[VerifierLink], None],
    ) -> None:
        self._open_link = open_link
        self._close_link = close_link
        self._links = {address: open_link(address) for address in addresses}
        self._retired: dict[VerifierLink, asyncio.Task[None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted = frozenset(self._links)
        self._has_changed = asyncio.Event()

    def use(self, addresses: Iterable[str]) -> None:
        """Name other verifiers from now on."""
        self._wanted = frozenset(addresses)
        self._has_changed.set()

    async def run(self) -> None:
        """Keep the links up until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address, link in self._links.items():
                self._tasks[address] = group.create_task(link.run(), name=address)
            while True:
                self._retire()
                self._add(group)
                self._close_idle()
                self._has_changed.clear()
                await self._wait()

    def _retire(self) -> None:
        for address in self._links.keys() - self._wanted:
            link = self._links.pop(address)
            link.is_retired = True
            self._retired[link] = self._tasks.pop(address)
            log.info("verifier_retired", verifier=address)

    def _add(self, group: asyncio.TaskGroup) -> None:
        for address in sorted(self._wanted - self._links.keys()):
            link = self._links[address] = self._open_link(address)
            self._tasks[address] = group.create_task(link.run(), name=address)
            log.info("verifier_added", verifier=address)

    def _close_idle(self) -> None:
        for link in [link for link in self._retired if not link.num_sequences]:
            self._retired.pop(link).cancel()
            self._close_link(link)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(RETIREMENT_LOOK_SECONDS if self._retired else None):
                await self._has_changed.wait()
        except TimeoutError:
            return
