"""A verify service that emits made-up tokens at a steady pace: the load of a measured gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc.aio

from paceline.codec import protocol_range
from paceline.serving import Server
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as messages
from paceline.v1.verify_service_pb2_grpc import (
    VerifyServiceServicer,
    add_VerifyServiceServicer_to_server,
)

POOL: Final = "paced"
CONTEXT_LENGTH: Final = 1 << 20
VOCAB_SIZE: Final = 1 << 16
"""More than the tokenizer has; only letters are ever said."""

AttachContext: TypeAlias = grpc.aio.ServicerContext[messages.AttachRequest, messages.AttachResponse]
InfoContext: TypeAlias = grpc.aio.ServicerContext[
    messages.GetModelInfoRequest, messages.GetModelInfoResponse
]


@dataclass(slots=True)
class Pace:
    """How the verifier steps; it may be changed at any time."""

    step_seconds: float = 0.01
    tokens_per_step: int = 1
    is_paused: bool = False


class PacedVerifier(VerifyServiceServicer):
    """One message per step with a result for every running sequence, as a real one sends."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._remaining: dict[int, int] = {}
        self._new: list[messages.Start] = []

    @property
    def num_running(self) -> int:
        """Sequences that run."""
        return len(self._remaining) + len(self._new)

    async def GetModelInfo(  # noqa: N802 as in the proto
        self, request: messages.GetModelInfoRequest, context: InfoContext
    ) -> messages.GetModelInfoResponse:
        """Describe a model that can do little."""
        return messages.GetModelInfoResponse(
            model="paced",
            vocab_size=VOCAB_SIZE,
            context_length=CONTEXT_LENGTH,
            engine="paced",
            capabilities=messages.Capabilities(
                trees=True,
                verification_rules=[types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH],
                max_draft_tokens=16,
                seeded_invariance=True,
            ),
            protocol=protocol_range(),
            draft_pools=[messages.DraftPool(name=POOL, available=True, drafter=POOL)],
            default_sampling=types_pb2.SamplingParams(temperature=0.0),
        )

    async def Attach(  # noqa: N802 as in the proto
        self, request_iterator: AsyncIterator[messages.AttachRequest], context: AttachContext
    ) -> AsyncIterator[messages.AttachResponse]:
        """Step until the gateway goes."""
        reader = asyncio.create_task(self._read(request_iterator))
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                due = max(due + self.pace.step_seconds, loop.time())
                await asyncio.sleep(due - loop.time())
                response = self._step()
                if response.results:
                    yield response
        finally:
            reader.cancel()
            self._remaining.clear()

    async def Verify(  # noqa: N802 as in the proto
        self,
        request_iterator: AsyncIterator[messages.VerifyRequest],
        context: grpc.aio.ServicerContext[messages.VerifyRequest, messages.VerifyResponse],
    ) -> AsyncIterator[messages.VerifyResponse]:
        """Refuse: gateways never call it."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this verifier only keeps a pace")
        yield messages.VerifyResponse()

    async def _read(self, requests: AsyncIterator[messages.AttachRequest]) -> None:
        async for batch in requests:
            self._new.extend(batch.starts)
            for cancel in batch.cancels:
                self._remaining.pop(cancel.request_id, None)

    def _step(self) -> messages.AttachResponse:
        response = messages.AttachResponse()
        if not self.pace.is_paused:
            for number in list(self._remaining):
                self._add(response, number, self.pace.tokens_per_step)
        for start in self._new:
            self._remaining[start.request_id] = start.limits.max_tokens
            self._add(response, start.request_id, 1, is_prefill=True)
        self._new.clear()
        load = response.load
        load.num_running, load.max_running, load.estimated_gain = len(self._remaining), 4096, 1.0
        load.step_time.FromNanoseconds(int(self.pace.step_seconds * 1e9))
        return response

    def _add(
        self,
        response: messages.AttachResponse,
        number: int,
        count: int,
        *,
        is_prefill: bool = False,
    ) -> None:
        left = self._remaining[number]
        count = min(count, left)
        result = response.results.add(
            request_id=number,
            token_ids=[97 + (left + place) % 26 for place in range(count)],
            num_drafted=0 if is_prefill else 8,
            num_accepted=0 if is_prefill else count - 1,
            is_prefill=is_prefill,
        )
        self._remaining[number] = left - count
        if left == count:
            result.finish_reason = types_pb2.FINISH_REASON_LENGTH
            del self._remaining[number]


@asynccontextmanager
async def paced_verifier() -> AsyncIterator[tuple[PacedVerifier, str]]:
    """Serve until the block ends; yield the verifier and its address."""
    server = Server(("paceline.v1.VerifyService",), with_reflection=False)
    verifier = PacedVerifier()
    add_VerifyServiceServicer_to_server(verifier, server.grpc)
    port = server.listen("127.0.0.1:0")
    await server.start()
    await server.set_ready(True)
    try:
        yield verifier, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
