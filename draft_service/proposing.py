"""
How proposals are computed: at once in the event loop, or in batches in a thread of their own.

It knows neither sessions nor streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from draft_service.drafter import Draft, Drafter, DraftJob


class Proposer(Protocol):
    """Computes proposals for one stream's sessions without holding up the other streams."""

    async def propose(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job, in order; raises what the drafter raises."""
        ...

    async def aclose(self) -> None:
        """Finish the work at hand and free the threads."""
        ...


def proposer_for(drafter: Drafter) -> Proposer:
    """Return the proposer that fits the drafter's speed."""
    return BatchingProposer(drafter) if drafter.info.is_blocking else InlineProposer(drafter)


class InlineProposer:
    """For drafters that take microseconds: a thread would cost more than the work."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    async def propose(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job, in order."""
        return self._drafter.propose_batch(jobs)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to free."""


class BatchingProposer:
    """
    For drafters that take milliseconds: one batch at a time, in one thread.

    What arrives from any stream while a batch runs makes up the next one. A stream waits for its
    proposals before it asks again, so that the queue is no longer than there are streams.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafter")
        self._waiting: list[tuple[Sequence[DraftJob], asyncio.Future[Sequence[Draft]]]] = []
        self._running: asyncio.Task[None] | None = None

    async def propose(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job, in order."""
        drafts: asyncio.Future[Sequence[Draft]] = asyncio.get_running_loop().create_future()
        self._waiting.append((jobs, drafts))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await drafts

    async def aclose(self) -> None:
        """Finish the batches at hand and end the thread."""
        if self._running is not None:
            await self._running
        self._thread.shutdown()

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            jobs = [job for waiting, _ in batch for job in waiting]
            loop = asyncio.get_running_loop()
            try:
                drafts = await loop.run_in_executor(self._thread, self._drafter.propose_batch, jobs)
            except Exception as error:
                _fail(batch, error)
            else:
                _deliver(batch, drafts)
        self._running = None


def _deliver(
    batch: Sequence[tuple[Sequence[DraftJob], asyncio.Future[Sequence[Draft]]]],
    drafts: Sequence[Draft],
) -> None:
    start = 0
    for jobs, waiting in batch:
        if not waiting.done():
            waiting.set_result(drafts[start : start + len(jobs)])
        start += len(jobs)


def _fail(
    batch: Sequence[tuple[Sequence[DraftJob], asyncio.Future[Sequence[Draft]]]], error: Exception
) -> None:
    for _, waiting in batch:
        if not waiting.done():
            waiting.set_exception(error)
