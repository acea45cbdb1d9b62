"""
How proposals are computed: at once in the event loop, or in batches in a thread of their own.

It knows neither sessions nor streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from draft_service.drafter import Draft, Drafter, DraftJob

MAX_BATCH: Final = 64
"""Most jobs that a drafter is given at once: a model's pass grows with its rows, and 64 sessions
are as many as a verifier runs while drafting pays."""


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


class _Waiting:
    """Jobs of one stream that wait for their turn, and what was answered of them so far."""

    def __init__(self, jobs: Sequence[DraftJob]) -> None:
        self._jobs = jobs
        self._drafts: list[Draft] = []
        self.answer: asyncio.Future[Sequence[Draft]] = asyncio.get_running_loop().create_future()

    def next_jobs(self, limit: int) -> Sequence[DraftJob]:
        """Return the first jobs without an answer, at most ``limit``."""
        start = len(self._drafts)
        return self._jobs[start : start + limit]

    def take(self, drafts: Sequence[Draft]) -> None:
        """Take the answers to the next jobs; with the last of them the stream is answered."""
        self._drafts += drafts
        if self.is_complete and not self.answer.done():
            self.answer.set_result(self._drafts)

    def fail(self, error: Exception) -> None:
        """Answer that the drafter failed."""
        if not self.answer.done():
            self.answer.set_exception(error)

    @property
    def is_complete(self) -> bool:
        """Whether nobody waits for more answers."""
        return len(self._drafts) == len(self._jobs) or self.answer.done()


class BatchingProposer:
    """
    For drafters that take milliseconds: one batch at a time, in one thread.

    What arrives from any stream while a batch runs takes part in the next one. Batches are bounded
    and shared out evenly, so that a stream with many sessions holds up its own, not the others. A
    stream waits for its proposals before it asks again: the queue is no longer than there are
    streams.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafter")
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def propose(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job, in order."""
        waiting = _Waiting(jobs)
        self._waiting.append(waiting)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await waiting.answer

    async def aclose(self) -> None:
        """Finish the batches at hand and end the thread."""
        if self._running is not None:
            await self._running
        self._thread.shutdown()

    async def _run(self) -> None:
        while self._waiting:
            await self._run_batch(list(self._waiting))
            self._waiting = [each for each in self._waiting if not each.is_complete]
        self._running = None

    async def _run_batch(self, batch: Sequence[_Waiting]) -> None:
        share = max(MAX_BATCH // len(batch), 1)
        shares = [waiting.next_jobs(share) for waiting in batch]
        jobs = [job for share_of_one in shares for job in share_of_one]
        loop = asyncio.get_running_loop()
        try:
            drafts = await loop.run_in_executor(self._thread, self._drafter.propose_batch, jobs)
        except Exception as error:
            for waiting in batch:
                waiting.fail(error)
            return
        start = 0
        for waiting, share_of_one in zip(batch, shares, strict=True):
            waiting.take(drafts[start : start + len(share_of_one)])
            start += len(share_of_one)
