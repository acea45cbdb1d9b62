"""Finds the verifiers behind names, such as the pods of a headless Service, and links to them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import structlog

from gateway.verifier_link import VerifierLink

log: structlog.stdlib.BoundLogger = structlog.get_logger()

PREFIX: Final = "dns:"
LOOK_SECONDS: Final = 2.0
"""Time between two looks at the names: how long a new verifier stays unnoticed."""

Resolver = Callable[[str], Awaitable[Collection[str]]]


class VerifierDiscovery:
    """
    Keeps one link per address behind some names.

    A name loses an address as soon as its verifier drains, so a link lives on as long as it can be
    used or still has sequences.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        open_link: Callable[[str], VerifierLink],
        close_link: Callable[[VerifierLink], None],
        resolve: Resolver | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._names = names
        self._open_link = open_link
        self._close_link = close_link
        self._resolve = resolve or addresses_behind
        self._look_seconds = look_seconds
        self._links: dict[str, VerifierLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look at the names until cancelled; the links end with it."""
        async with asyncio.TaskGroup() as group:
            while True:
                found: set[str] = set()
                for name in self._names:
                    found |= set(await self._resolve(name))
                self._open(found, group)
                self._close_gone(found)
                await asyncio.sleep(self._look_seconds)

    def _open(self, found: Collection[str], group: asyncio.TaskGroup) -> None:
        for address in sorted(found - self._links.keys()):
            link = self._links[address] = self._open_link(address)
            self._tasks[address] = group.create_task(link.run(), name=address)
            log.info("verifier_found", address=address)

    def _close_gone(self, found: Collection[str]) -> None:
        for address in self._links.keys() - found:
            link = self._links[address]
            if not link.is_usable and not link.num_sequences:
                self._tasks.pop(address).cancel()
                del self._links[address]
                self._close_link(link)
                log.info("verifier_gone", address=address)


async def addresses_behind(name: str) -> frozenset[str]:
    """Return the addresses of ``host:port``; none while the name cannot be resolved."""
    host, _, port = name.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        entries = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(_joined(str(entry[4][0]), port) for entry in entries)


def _joined(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
