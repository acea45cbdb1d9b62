"""Sequences run directly at a verifier, of which every single step is seen."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bench.kill_line import MAX_TOKENS, POOL
from paceline.channels import open_link
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as messages
from paceline.v1.verify_service_pb2_grpc import VerifyServiceStub

NUM_SEQUENCES: Final = 4
PATIENCE_SECONDS: Final = 60.0


class StepWatch:
    """
    Keeps a few drafting sequences running and looks at each of their steps.

    A step counts as lost when it verified nothing although the verifier could use the pool again,
    and although sequences of that length do verify drafts: all say the same text, and before that
    repeats itself no drafter has anything to say.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._next_id = 1
        self._outgoing: asyncio.Queue[messages.AttachRequest] = asyncio.Queue()
        self._without_pool: set[int] = set()
        """Sequences whose last step found the pool gone."""
        self._waiting: dict[int, int] = {}
        """Steps of each since the pool is back, while none of them has verified a draft."""
        self._lost: list[int] = []
        self._lengths: Counter[int] = Counter()
        """Emitted tokens of each sequence."""
        self._drafted: Counter[int] = Counter()
        self._empty: Counter[int] = Counter()
        """Steps of undisturbed sequences by their length, with drafts and without."""

    def start(self) -> None:
        """Run one more sequence."""
        start = messages.Start(
            request_id=self._next_id,
            prompt_token_ids=self._prompt,
            sampling=types_pb2.SamplingParams(temperature=0.0, seed=self._next_id),
            limits=types_pb2.TokenLimits(max_tokens=self._next_len(), ignore_eos=True),
            drafting=types_pb2.DraftingPolicy(pool=POOL),
        )
        self._next_id += 1
        self._outgoing.put_nowait(messages.AttachRequest(starts=[start]))

    def _next_len(self) -> int:
        """Return lengths that differ: sequences that all end in one step would not be seen."""
        return 10 * MAX_TOKENS + self._next_id % NUM_SEQUENCES * MAX_TOKENS

    async def requests(self) -> AsyncIterator[messages.AttachRequest]:
        """Yield what to send."""
        while True:
            yield await self._outgoing.get()

    def take(self, response: messages.AttachResponse) -> None:
        """Look at the steps of a message; a sequence that ends is followed by another."""
        for result in response.results:
            if not result.is_prefill and result.token_ids:
                self._look_at(result)
            if result.finish_reason:
                self._end(result.request_id)
                self.start()

    async def until_unreachable(self) -> None:
        """Wait until every sequence runs without the pool."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self._without_pool) < NUM_SEQUENCES:  # noqa: ASYNC110 - set by the reader
                await asyncio.sleep(0.01)

    async def lost_steps(self) -> float:
        """Return the mean of lost steps once all sequences that lost the pool draft again."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._without_pool or self._waiting or not self._lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        lost, self._lost = self._lost, []
        return sum(lost) / len(lost)

    def _end(self, number: int) -> None:
        self._without_pool.discard(number)
        self._lengths.pop(number, None)
        if number in self._waiting:
            self._lost.append(self._waiting.pop(number))

    def _look_at(self, result: messages.StepResult) -> None:
        number, length = result.request_id, self._lengths[result.request_id]
        self._lengths[number] += len(result.token_ids)
        if result.fallback == types_pb2.DRAFT_FALLBACK_UNREACHABLE:
            self._without_pool.add(number)
            return
        if number in self._without_pool:
            self._without_pool.remove(number)
            self._waiting[number] = 0
        if number not in self._waiting:
            (self._drafted if result.num_drafted else self._empty)[length] += 1
        elif result.num_drafted:
            self._lost.append(self._waiting.pop(number))
        elif self._drafted[length] >= self._empty[length]:
            self._waiting[number] += 1


@asynccontextmanager
async def watching_steps(address: str, prompt: Sequence[int]) -> AsyncIterator[StepWatch]:
    """Run the sequences until the block ends."""
    watch = StepWatch(prompt)
    async with open_link(address) as channel:
        call = VerifyServiceStub(channel).Attach(watch.requests())

        async def read() -> None:
            async for response in call:
                watch.take(response)

        reader = asyncio.create_task(read())
        for _ in range(NUM_SEQUENCES):
            watch.start()
        try:
            yield watch
        finally:
            call.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
