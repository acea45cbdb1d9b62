"""Sequences run directly at a verifier, of which every single step is seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bench.kill_line import MAX_TOKENS, POOL
from paceline.channels import open_link
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as messages
from paceline.v1.verify_service_pb2_grpc import VerifyServiceStub

NUM_SEQUENCES: Final = 4
MAX_STEPS_SEEN: Final = 100_000
STEPS_COMPARED: Final = 40
"""Per sequence, after the pool is back."""
PATIENCE_SECONDS: Final = 60.0


class StepWatch:
    """
    Keeps a few drafting sequences running and remembers their steps.

    A step counts as lost when it verified nothing although the verifier could use the pool.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._next_id = 1
        self._outgoing: asyncio.Queue[messages.AttachRequest] = asyncio.Queue()
        self._steps: list[tuple[int, int]] = []
        """(drafted, fallback) of each step, of all sequences in turn."""
        self._is_unreachable = False
        self._back_at = 0
        """Index of the first step with the pool after it was gone."""

    def start(self) -> None:
        """Run one more sequence."""
        start = messages.Start(
            request_id=self._next_id,
            prompt_token_ids=self._prompt,
            sampling=types_pb2.SamplingParams(temperature=0.0, seed=self._next_id),
            limits=types_pb2.TokenLimits(max_tokens=10 * MAX_TOKENS, ignore_eos=True),
            drafting=types_pb2.DraftingPolicy(pool=POOL),
        )
        self._next_id += 1
        self._outgoing.put_nowait(messages.AttachRequest(starts=[start]))

    async def requests(self) -> AsyncIterator[messages.AttachRequest]:
        """Yield what to send."""
        while True:
            yield await self._outgoing.get()

    def take(self, response: messages.AttachResponse) -> None:
        """Remember the steps of a message; a sequence that ends is followed by another."""
        for result in response.results:
            if result.finish_reason:
                self.start()
            if result.is_prefill or not result.token_ids:
                continue
            is_gone = result.fallback == types_pb2.DRAFT_FALLBACK_UNREACHABLE
            if self._is_unreachable and not is_gone:
                self._back_at = len(self._steps)
            self._is_unreachable = is_gone
            self._steps.append((result.num_drafted, result.fallback))
            del self._steps[: max(0, len(self._steps) - MAX_STEPS_SEEN)]

    def empty_share(self) -> float:
        """Return the share of the last steps in which the drafter had nothing to say."""
        recent = self._steps[-STEPS_COMPARED * NUM_SEQUENCES :]
        return _empty(recent) / max(len(recent), 1)

    async def until_unreachable(self) -> None:
        """Wait until the verifier runs without the pool."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._is_unreachable:  # noqa: ASYNC110 - set by the reader
                await asyncio.sleep(0.01)

    async def lost_steps(self, usual_share: float) -> float:
        """Return lost steps per sequence since the pool is back, beyond what is usual."""
        wanted = STEPS_COMPARED * NUM_SEQUENCES
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._is_unreachable or len(self._steps) < self._back_at + wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        after = self._steps[self._back_at : self._back_at + wanted]
        return max(0.0, (_empty(after) - usual_share * len(after)) / NUM_SEQUENCES)


def _empty(steps: Sequence[tuple[int, int]]) -> int:
    gone = types_pb2.DRAFT_FALLBACK_UNREACHABLE
    return sum(not drafted and fallback != gone for drafted, fallback in steps)


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
