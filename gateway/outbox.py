"""What waits to be sent to one verifier, gathered into as few messages as possible."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from gateway.generation import DraftingChoice, SequenceRequest
from gateway.verifier_codec import drafting_to_proto, start_to_proto
from paceline.v1.verify_service_pb2 import AttachRequest, Cancel, SetDrafting, Start

MAX_TOKENS_PER_MESSAGE: Final = 1_000_000
"""A message stays well below the size limit, whatever its prompts: an id takes at most 5 bytes."""


class Outbox:
    """
    Items in the order in which they were put; all that wait go out in one message.

    Bounded by its user: it holds at most a start, and a few later items, per open sequence.
    """

    def __init__(self) -> None:
        self._items: deque[Start | SetDrafting | Cancel] = deque()
        self._filled = asyncio.Event()

    def start(self, number: int, request: SequenceRequest, now: float) -> None:
        """Put the start of a sequence."""
        self._put(start_to_proto(number, request, now))

    def set_drafting(self, number: int, choice: DraftingChoice) -> None:
        """Put a change of drafts."""
        self._put(SetDrafting(request_id=number, drafting=drafting_to_proto(choice)))

    def cancel(self, number: int) -> None:
        """Put a cancellation."""
        self._put(Cancel(request_id=number))

    async def batches(self) -> AsyncGenerator[AttachRequest, None]:
        """Yield messages for ever, each with all that was put since the one before."""
        while True:
            await self._filled.wait()
            yield self._take()
            if not self._items:
                self._filled.clear()

    def _put(self, item: Start | SetDrafting | Cancel) -> None:
        self._items.append(item)
        self._filled.set()

    def _take(self) -> AttachRequest:
        batch = AttachRequest()
        num_tokens = 0
        while self._items and num_tokens <= MAX_TOKENS_PER_MESSAGE:
            item = self._items.popleft()
            match item:
                case Start():
                    num_tokens += len(item.prompt_token_ids) + len(item.emitted_token_ids)
                    num_tokens += len(item.predicted_token_ids)
                    batch.starts.append(item)
                case SetDrafting():
                    batch.set_draftings.append(item)
                case Cancel():
                    batch.cancels.append(item)
        return batch
