"""Who may run now, who waits, and who is turned away. It does not know what runs."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass, field

from gateway.generation import PriorityClass
from paceline.errors import Overloaded, PacelineError

_HOLD_WEIGHT = 0.1
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.1, 30.0


@dataclass(order=True, slots=True)
class _Waiter:
    rank: int
    order: int
    weight: int = field(compare=False)
    granted: asyncio.Future[None] = field(compare=False)


class Admission:
    """
    At most ``max_running`` sequences run and at most ``max_waiting`` requests wait.

    Higher priority goes first; within a class, first come first served. A request for several
    sequences waits until all have room, and none overtakes it in its class.
    """

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._num_running = 0
        self._waiting: list[_Waiter] = []
        self._order = itertools.count()
        self._hold_seconds = 1.0

    def resize(self, *, max_running: int, max_waiting: int) -> None:
        """Change the limits; what runs or waits beyond the new ones stays."""
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._grant()

    def close(self, error: PacelineError) -> None:
        """Turn away all that wait, with an error; what runs stays."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.granted.done():
                waiter.granted.set_exception(error)

    @property
    def num_running(self) -> int:
        """Sequences that run."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    async def acquire(self, num_sequences: int, priority: PriorityClass) -> Room:
        """Wait for room; raises ``Overloaded`` when too many wait already."""
        weight = min(num_sequences, self._max_running)
        if not self._waiting and self._num_running + weight <= self._max_running:
            self._num_running += weight
        else:
            await self._wait(weight, priority)
        return Room(self, weight)

    async def _wait(self, weight: int, priority: PriorityClass) -> None:
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded(
                f"{self._num_running} sequences run (at most {self._max_running}) and "
                f"{len(self._waiting)} requests wait (at most {self._max_waiting}); retry later",
                reason="QUEUE_FULL",
                retry_after_seconds=self._retry_seconds(),
                quota="max_waiting",
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(-priority, next(self._order), weight, granted)
        heapq.heappush(self._waiting, waiter)
        try:
            await granted
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        granted = waiter.granted
        if not granted.cancelled():
            if granted.exception() is None:
                self._release(waiter.weight)
            return
        self._waiting = [other for other in self._waiting if other is not waiter]
        heapq.heapify(self._waiting)
        self._grant()

    def _end(self, weight: int, held_seconds: float) -> None:
        self._hold_seconds += _HOLD_WEIGHT * (held_seconds - self._hold_seconds)
        self._release(weight)

    def _release(self, weight: int) -> None:
        self._num_running -= weight
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].weight):
            waiter = heapq.heappop(self._waiting)
            if waiter.granted.cancelled():
                continue
            self._num_running += waiter.weight
            waiter.granted.set_result(None)

    def _fits(self, weight: int) -> bool:
        # A request for more sequences than now may run at all goes when nothing else does.
        return self._num_running + min(weight, self._max_running) <= self._max_running

    def _retry_seconds(self) -> float:
        """Return about when the queue will have moved by its own length."""
        expected = self._hold_seconds * (len(self._waiting) + 1) / self._max_running
        return min(max(expected, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


class Room:
    """The place of one request among those that run; ``release`` gives it back, once."""

    def __init__(self, admission: Admission, weight: int) -> None:
        self._admission = admission
        self._weight = weight
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._is_held = True

    def release(self) -> None:
        """Give the place to those that wait; after the first time, nothing."""
        if self._is_held:
            self._is_held = False
            self._admission._end(self._weight, self._clock() - self._since)
