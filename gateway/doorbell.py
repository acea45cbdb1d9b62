"""Waking one waiting task: an ``asyncio.Event`` for a single waiter, at a fraction of its price."""

from __future__ import annotations

import asyncio


class Doorbell:
    """
    Remembers one ring until it is heard; rings in between are one.

    Invariant: at most one task waits. It is rung for every message, and costs one future each time
    that somebody waits and nothing otherwise.
    """

    __slots__ = ("_has_rung", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._has_rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiting task, or the next one that waits."""
        self._has_rung = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def heard(self) -> None:
        """Wait for a ring since the last one heard."""
        if not self._has_rung:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._has_rung = False
