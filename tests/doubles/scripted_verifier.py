"""A verify service that answers what a test told it, over real gRPC on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TypeAlias

import grpc
import grpc.aio

from paceline.codec import protocol_range
from paceline.serving import Server
from paceline.tls import ServerTls
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as messages
from paceline.v1.verify_service_pb2_grpc import (
    VerifyServiceServicer,
    add_VerifyServiceServicer_to_server,
)

Script: TypeAlias = Callable[[messages.Start], Iterable[messages.AttachResponse]]
InfoContext: TypeAlias = grpc.aio.ServicerContext[
    messages.GetModelInfoRequest, messages.GetModelInfoResponse
]
VerifyContext: TypeAlias = grpc.aio.ServicerContext[messages.VerifyRequest, messages.VerifyResponse]
AttachContext: TypeAlias = grpc.aio.ServicerContext[messages.AttachRequest, messages.AttachResponse]

PATIENCE_SECONDS = 5.0
ENDS = types_pb2.FINISH_REASON_LENGTH
RUNS = types_pb2.FINISH_REASON_UNSPECIFIED


def next_token_id(committed: Sequence[int], vocab_size: int = 256) -> int:
    """Return the token that the scripted model says after ``committed``: a function of it alone."""
    recent = sum((place + 1) * token_id for place, token_id in enumerate(committed[-3:]))
    return 3 + (recent * 31 + len(committed) * 17) % (vocab_size - 3)


def expected_token_ids(prompt: Sequence[int], count: int, vocab_size: int = 256) -> list[int]:
    """Return what the scripted model says after a prompt."""
    committed = list(prompt)
    for _ in range(count):
        committed.append(next_token_id(committed, vocab_size))
    return committed[len(prompt) :]


def model_info(**changes: object) -> messages.GetModelInfoResponse:
    """Return the description of a scripted model that can do everything."""
    fields: dict[str, object] = {
        "model": "scripted",
        "vocab_size": 400,
        "context_length": 512,
        "engine": "scripted",
        "eos_token_ids": [2],
        "capabilities": messages.Capabilities(
            trees=True,
            verification_rules=[
                types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH,
                types_pb2.VERIFICATION_RULE_REJECTION,
            ],
            max_draft_tokens=64,
            max_logprobs=5,
            penalties=True,
            logit_bias=True,
            structured_output=True,
            seeded_invariance=True,
        ),
        "protocol": protocol_range(),
        "draft_pools": [messages.DraftPool(name="ngram", available=True, drafter="ngram")],
        "default_sampling": types_pb2.SamplingParams(temperature=0.0),
        "version": "1",
    }
    return messages.GetModelInfoResponse(**(fields | changes))  # type: ignore[arg-type]


def step(
    start: messages.Start,
    token_ids: Sequence[int],
    *,
    finish: types_pb2.FinishReason.ValueType = RUNS,
    drafted: int = 0,
    accepted: int = 0,
    is_prefill: bool = False,
    stop_token_id: int | None = None,
) -> messages.AttachResponse:
    """Return the message of one step for one sequence."""
    return messages.AttachResponse(
        results=[
            messages.StepResult(
                request_id=start.request_id,
                token_ids=token_ids,
                num_drafted=drafted,
                num_accepted=accepted,
                finish_reason=finish,
                is_prefill=is_prefill,
                matched_stop_token_id=stop_token_id,
            )
        ]
    )


def steps_of(token_ids: Sequence[int], width: int = 3) -> Script:
    """Return a script that says fixed tokens: the prefill one, then runs, ending by length."""

    def script(start: messages.Start) -> Iterable[messages.AttachResponse]:
        yield from _runs(start, token_ids, width)

    return script


def model_steps(width: int = 3, vocab_size: int = 256) -> Script:
    """Return a script that runs the scripted model up to ``max_tokens``; it resumes exactly."""

    def script(start: messages.Start) -> Iterable[messages.AttachResponse]:
        emitted = start.emitted_token_ids
        count = start.limits.max_tokens - len(emitted)
        committed = [*start.prompt_token_ids, *emitted]
        yield from _runs(start, expected_token_ids(committed, count, vocab_size), width)

    return script


def refusing(code: grpc.StatusCode, field: str = "") -> ScriptedVerifier:
    """Return a verifier that answers each start with a failure."""

    def script(start: messages.Start) -> list[messages.AttachResponse]:
        failure = messages.Failure(
            request_id=start.request_id,
            code=code.value[0],
            reason="SCRIPTED",
            message="scripted failure",
            field=field,
        )
        failure.retry_after.FromMilliseconds(250)
        return [messages.AttachResponse(failures=[failure])]

    return ScriptedVerifier(script)


def _runs(
    start: messages.Start, token_ids: Sequence[int], width: int
) -> Iterable[messages.AttachResponse]:
    cuts = [0, *range(1, len(token_ids), width), len(token_ids)]
    for begin, end in pairwise(cuts):
        is_last = end == len(token_ids)
        yield step(
            start,
            token_ids[begin:end],
            finish=ENDS if is_last else RUNS,
            drafted=0 if begin == 0 else width + 1,
            accepted=0 if begin == 0 else end - begin - 1,
            is_prefill=begin == 0,
        )


class ScriptedVerifier(VerifyServiceServicer):
    """Plays a script for each start and records what was asked."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        info: messages.GetModelInfoResponse | None = None,
        pause_seconds: float = 0.0,
    ) -> None:
        self.script = script or model_steps()
        self.info = info or model_info()
        self.pause_seconds = pause_seconds
        self.address = ""
        self.batches: list[messages.AttachRequest] = []
        self.num_attached = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self._outgoing: set[asyncio.Queue[messages.AttachResponse | None]] = set()
        self._changed = asyncio.Condition()
        self._players: dict[int, asyncio.Task[None]] = {}

    @property
    def starts(self) -> list[messages.Start]:
        """All starts received."""
        return [start for batch in self.batches for start in batch.starts]

    @property
    def cancels(self) -> list[int]:
        """The numbers of all sequences that were cancelled."""
        return [cancel.request_id for batch in self.batches for cancel in batch.cancels]

    @property
    def set_draftings(self) -> list[messages.SetDrafting]:
        """All changes of drafts received."""
        return [change for batch in self.batches for change in batch.set_draftings]

    async def until(self, condition: Callable[[ScriptedVerifier], object]) -> None:
        """Wait until a condition on what was received holds."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: bool(condition(self)))

    async def send(self, response: messages.AttachResponse) -> None:
        """Send a message on every stream."""
        for outgoing in self._outgoing:
            await outgoing.put(response)

    async def end_streams(self) -> None:
        """End every stream with UNAVAILABLE."""
        for outgoing in self._outgoing:
            await outgoing.put(None)

    async def GetModelInfo(
        self, request: messages.GetModelInfoRequest, context: InfoContext
    ) -> messages.GetModelInfoResponse:
        """Describe the scripted model, while ``answers`` is set."""
        await self.answers.wait()
        return self.info

    async def Attach(
        self, request_iterator: AsyncIterator[messages.AttachRequest], context: AttachContext
    ) -> AsyncIterator[messages.AttachResponse]:
        """Play scripts until the gateway goes or ``end_streams`` is called."""
        outgoing: asyncio.Queue[messages.AttachResponse | None] = asyncio.Queue()
        self._outgoing.add(outgoing)
        self.num_attached += 1
        reader = asyncio.create_task(self._read(request_iterator, outgoing))
        await self._announce()
        try:
            while (response := await outgoing.get()) is not None:
                yield response
            await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted loss")
        finally:
            self._outgoing.discard(outgoing)
            for task in (reader, *self._players.values()):
                task.cancel()

    async def Verify(
        self, request_iterator: AsyncIterator[messages.VerifyRequest], context: VerifyContext
    ) -> AsyncIterator[messages.VerifyResponse]:
        """Refuse: gateways never call it."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "scripted")
        yield messages.VerifyResponse()

    async def _read(
        self,
        requests: AsyncIterator[messages.AttachRequest],
        outgoing: asyncio.Queue[messages.AttachResponse | None],
    ) -> None:
        async for batch in requests:
            self.batches.append(batch)
            for start in batch.starts:
                player = asyncio.create_task(self._play(start, outgoing))
                self._players[start.request_id] = player
            for cancel in batch.cancels:
                if (task := self._players.pop(cancel.request_id, None)) is not None:
                    task.cancel()
            await self._announce()

    async def _play(
        self,
        start: messages.Start,
        outgoing: asyncio.Queue[messages.AttachResponse | None],
    ) -> None:
        for response in self.script(start):
            await outgoing.put(response)
            await asyncio.sleep(self.pause_seconds)

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def failing_after(verifier: ScriptedVerifier, num_answers: int) -> Script:
    """Answer some requests, then fail all others."""
    works = model_steps()

    def script(start: messages.Start) -> Iterable[messages.AttachResponse]:
        if len(verifier.starts) <= num_answers:
            return works(start)
        failure = messages.Failure(request_id=start.request_id, code=13, message="scripted")
        return [messages.AttachResponse(failures=[failure])]

    return script


@asynccontextmanager
async def serving(
    verifier: ScriptedVerifier, address: str = "127.0.0.1:0", tls: ServerTls | None = None
) -> AsyncIterator[str]:
    """Serve a scripted verifier until the block ends, and yield its address."""
    server = Server(("paceline.v1.VerifyService",), with_reflection=False)
    add_VerifyServiceServicer_to_server(verifier, server.grpc)
    port = server.listen(address, tls)
    await server.start()
    await server.set_ready(True)
    verifier.address = f"127.0.0.1:{port}"
    try:
        yield verifier.address
    finally:
        await server.stop(0)
