"""A generation service that answers what a test told it, over real gRPC on the loopback."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from paceline.errors import PacelineError
from paceline.serving import Server
from paceline.status import rich_status
from paceline.tls import ServerTls
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.v1.generation_service_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One scripted answer: events, then an error, a silence, or the end."""

    events: tuple[messages.StreamGenerateResponse, ...] = ()
    error: PacelineError | None = None
    hangs: bool = False


class ScriptedGateway(GenerationServiceServicer):
    """Answers generation calls in scripted order and records what was asked."""

    def __init__(self, *turns: Turn) -> None:
        self.address = ""
        self.requests: list[messages.GenerateRequest] = []
        self.time_remaining: list[float | None] = []
        self.authorizations: list[str] = []
        self.cancelled = asyncio.Event()
        self.models: list[messages.Model] = []
        self.turns = deque(turns)

    async def StreamGenerate(
        self,
        request: messages.StreamGenerateRequest,
        context: grpc.aio.ServicerContext[
            messages.StreamGenerateRequest, messages.StreamGenerateResponse
        ],
    ) -> AsyncIterator[messages.StreamGenerateResponse]:
        """Play the next turn."""
        self.requests.append(request.request)
        self._note(context)
        self.time_remaining.append(context.time_remaining())
        turn = self.turns.popleft()
        for event in turn.events:
            yield event
        try:
            await asyncio.sleep(3600 if turn.hangs else 0)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if turn.error is not None:
            await context.abort_with_status(rich_status(turn.error))

    async def Generate(
        self,
        request: messages.GenerateRequest,
        context: grpc.aio.ServicerContext[messages.GenerateRequest, messages.GenerateResponse],
    ) -> messages.GenerateResponse:
        """Fold the next turn into one answer."""
        self.requests.append(request)
        self._note(context)
        self.time_remaining.append(context.time_remaining())
        turn = self.turns.popleft()
        if turn.error is not None:
            await context.abort_with_status(rich_status(turn.error))
        return folded(turn.events)

    async def ListModels(
        self,
        request: messages.ListModelsRequest,
        context: grpc.aio.ServicerContext[messages.ListModelsRequest, messages.ListModelsResponse],
    ) -> messages.ListModelsResponse:
        """Return the scripted models."""
        self._note(context)
        return messages.ListModelsResponse(models=self.models)

    async def GetModel(
        self,
        request: messages.GetModelRequest,
        context: grpc.aio.ServicerContext[messages.GetModelRequest, messages.GetModelResponse],
    ) -> messages.GetModelResponse:
        """Return the first scripted model."""
        return messages.GetModelResponse(model=self.models[0])

    async def Tokenize(
        self,
        request: messages.TokenizeRequest,
        context: grpc.aio.ServicerContext[messages.TokenizeRequest, messages.TokenizeResponse],
    ) -> messages.TokenizeResponse:
        """Return the code points of the text."""
        self._note(context)
        text = request.text or "".join(message.content for message in request.chat.messages)
        return messages.TokenizeResponse(token_ids=map(ord, text), context_length=64)

    def _note(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                self.authorizations.append(str(value))


@asynccontextmanager
async def serving(
    gateway: ScriptedGateway,
    *,
    ready: bool = True,
    address: str = "127.0.0.1:0",
    tls: ServerTls | None = None,
) -> AsyncIterator[Server]:
    """Serve the gateway; fails when a scripted turn was never asked for."""
    server = Server(["paceline.v1.GenerationService"])
    add_GenerationServiceServicer_to_server(gateway, server.grpc)
    gateway.address = f"127.0.0.1:{server.listen(address, tls)}"
    await server.start()
    await server.set_ready(ready)
    try:
        yield server
    finally:
        await server.stop(0)
    assert not gateway.turns, f"{len(gateway.turns)} scripted turns were never asked for"


def started(request_id: str = "r1", seed: int = 7) -> messages.StreamGenerateResponse:
    """Return a started event."""
    sampling = types_pb2.SamplingParams(seed=seed, temperature=0.0, top_p=1.0)
    return messages.StreamGenerateResponse(
        started=messages.Started(
            request_id=request_id, model="tiny", sampling=sampling, prompt_tokens=3
        )
    )


def delta(
    text: str, *token_ids: int, completion_tokens: int = 0
) -> messages.StreamGenerateResponse:
    """Return a delta event."""
    return messages.StreamGenerateResponse(
        delta=messages.Delta(text=text, token_ids=token_ids, completion_tokens=completion_tokens)
    )


def finished(
    reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_STOP,
    *,
    index: int = 0,
    matched: str = "",
) -> messages.StreamGenerateResponse:
    """Return a finished event."""
    stop = messages.MatchedStop(text=matched) if matched else None
    return messages.StreamGenerateResponse(
        finished=messages.Finished(index=index, finish_reason=reason, matched_stop=stop)
    )


def summary(completion_tokens: int = 2) -> messages.StreamGenerateResponse:
    """Return a summary event with drafts."""
    return messages.StreamGenerateResponse(
        summary=messages.Summary(
            usage=types_pb2.Usage(prompt_tokens=3, completion_tokens=completion_tokens),
            speculation=types_pb2.SpeculationStats(
                num_spec_steps=2,
                num_draft_tokens=6,
                num_accepted_draft_tokens=3,
                acceptance_histogram=[0, 1, 1],
                mean_acceptance_length=2.5,
                draft_acceptance_rate=0.5,
                pool="ngram",
                fallbacks=[types_pb2.DRAFT_FALLBACK_LOAD],
            ),
        )
    )


def folded(events: tuple[messages.StreamGenerateResponse, ...]) -> messages.GenerateResponse:
    """Return the unary answer that says the same as the events."""
    answer = messages.GenerateResponse(outputs=[messages.Output()])
    output = answer.outputs[0]
    for event in events:
        if event.HasField("started"):
            answer.request_id = event.started.request_id
            answer.sampling.CopyFrom(event.started.sampling)
        output.text += event.delta.text
        output.token_ids.extend(event.delta.token_ids)
        if event.HasField("finished"):
            output.finish_reason = event.finished.finish_reason
        if event.HasField("summary"):
            answer.usage.CopyFrom(event.summary.usage)
            answer.speculation.CopyFrom(event.summary.speculation)
    return answer
