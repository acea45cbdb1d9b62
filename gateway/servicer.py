"""The generation service: decode, delegate, encode. Every call's end is mapped and logged here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc
import grpc.aio
import structlog

from gateway.call_identity import identity_trailers, request_id_of
from gateway.call_span import CallSpan, start_call_span
from gateway.caller import CURRENT, Caller
from gateway.door import Unreadable
from gateway.generation_request import GenerationRequest
from gateway.generator import Generator
from gateway.quotas import Lease, Quotas
from gateway.refusal import abort
from gateway.relay import Relay, RequestFigures
from gateway.request_codec import request_from_proto, tokenize_prompt_from_proto
from gateway.request_log import log_request
from gateway.response_codec import ResponseBuilder, event_to_proto, model_to_proto
from gateway.verifier_pool import ServedModel
from paceline.errors import EngineFailed, InvalidRequest, NotFound, PacelineError, Unavailable
from paceline.status import status_code
from paceline.trace_context import NO_TRACE, TraceContext, context_in
from paceline.unreadable import unreadable_message
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1.generation_service_pb2_grpc import GenerationServiceServicer

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[object, object]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_DEADLINE_SLACK_SECONDS: Final = 0.05
"""A client's clock begins first: its deadline passes, and cancels the call, this much sooner."""

_RETRY_AFTER_SECONDS: Final = 0.1
"""Another gateway can go on at once."""

GENERATING: Final = frozenset({"Generate", "StreamGenerate"})


@dataclass(slots=True)
class _Call:
    """What is known of a running call."""

    rpc: str
    request_id: str
    deadline: float
    caller: Caller
    num_resumed: int = 0
    lease: Lease | None = None
    relay: Relay | None = None
    trace: TraceContext = NO_TRACE
    """The context of the call's own span, or of the caller's where nothing is traced."""
    span: CallSpan | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class GenerationServicer(GenerationServiceServicer):
    """Serves applications; ``default_deadline_seconds`` holds for calls that set none."""

    def __init__(self, generator: Generator, *, default_deadline_seconds: float) -> None:
        self.default_deadline_seconds = default_deadline_seconds
        self.on_request_end: Callable[[RequestFigures, int], None] = _ignore
        """Called with the figures of each generation and how many tokens are its own."""
        self._generator = generator
        self._quotas = Quotas(asyncio.get_running_loop().time)
        self._running: set[Relay] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """End what runs and what waits: the gateway has no more time for it."""
        self._is_stopping = True
        self._generator.admission.close(_stopping())
        for relay in self._running:
            relay.end(_stopping())

    async def Generate(
        self, request: messages.GenerateRequest, context: Context
    ) -> messages.GenerateResponse:
        """Answer with everything at once."""
        builder = ResponseBuilder()
        async with self._answering("Generate", request, context) as call:
            decoded = self._decoded(request, context, call)
            relay = await self._open(decoded.as_one_piece(), context, call)
            async with aclosing(relay.events()) as events:
                async for event in events:
                    builder.add(event)
        return builder.build()

    async def StreamGenerate(
        self, request: messages.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[messages.StreamGenerateResponse]:
        """Answer with events as they happen."""
        async with self._answering("StreamGenerate", request, context) as call:
            decoded = self._decoded(request.request, context, call)
            relay = await self._open(decoded, context, call)
            async with aclosing(relay.events()) as events:
                async for event in events:
                    yield event_to_proto(event)

    async def GetModel(
        self, request: messages.GetModelRequest, context: Context
    ) -> messages.GetModelResponse:
        """Describe one model."""
        response = messages.GetModelResponse()
        async with self._answering("GetModel", request, context):
            response.model.CopyFrom(self._describe(self._generator.verifiers.model(request.model)))
        return response

    async def ListModels(
        self, request: messages.ListModelsRequest, context: Context
    ) -> messages.ListModelsResponse:
        """Describe all models."""
        response = messages.ListModelsResponse()
        async with self._answering("ListModels", request, context):
            response.models.extend(map(self._describe, self._generator.verifiers.models()))
        return response

    async def Tokenize(
        self, request: messages.TokenizeRequest, context: Context
    ) -> messages.TokenizeResponse:
        """Return a prompt's token ids as generation would see them."""
        response = messages.TokenizeResponse()
        async with self._answering("Tokenize", request, context):
            prompt = tokenize_prompt_from_proto(request)
            response.context_length = self._generator.context_length(request.model)
            response.token_ids.extend(
                await self._generator.tokenize(prompt, response.context_length)
            )
        return response

    def _describe(self, model: ServedModel) -> messages.Model:
        return model_to_proto(model, has_chat_template=self._generator.tokenizer.has_chat_template)

    def _decoded(
        self, message: messages.GenerateRequest, context: Context, call: _Call
    ) -> GenerationRequest:
        decoded = request_from_proto(message, trace=call.trace)
        wanted = decoded.priority if message.priority else None
        return replace(
            decoded,
            request_id=message.request_id or call.request_id,
            tenant=call.caller.tenant,
            priority=call.caller.priority(wanted),
        )

    async def _open(self, request: GenerationRequest, context: Context, call: _Call) -> Relay:
        call.request_id, call.metadata = request.request_id, request.metadata
        call.num_resumed = len(request.resume_token_ids)
        _tell_identity(context, call)
        call.relay = relay = await self._generator.open(request, call.deadline)
        self._running.add(relay)
        if self._is_stopping:
            relay.end(_stopping())
        if call.lease is not None:
            call.lease.charge(relay.options.prompt_tokens)
        # A handler that is suspended in a write hears of a disconnect late; this does not.
        context.add_done_callback(lambda _: relay.close())  # type: ignore[arg-type]  # any context
        return relay

    @asynccontextmanager
    async def _answering(self, rpc: str, request: object, context: Context) -> AsyncIterator[_Call]:
        """Let the call in, turn whatever ends it into its status, and log it."""
        call = self._call(rpc, request, context)
        _tell_identity(context, call)
        error: PacelineError | None = None
        code = grpc.StatusCode.OK
        try:
            call.lease = self._quotas.enter(call.caller, generates=rpc in GENERATING)
            _check_readable(request)
            yield call
        except PacelineError as expected:
            error, code = expected, status_code(expected)
        except (asyncio.CancelledError, GeneratorExit):
            code = self._code_of_cancellation(call)
            raise
        except Exception:
            log.exception("call_failed", rpc=rpc, request_id=call.request_id)
            error = EngineFailed(f"internal error; report the request id {call.request_id}")
            code = status_code(error)
        finally:
            self._end(call, code, error)
        if error is not None:
            await abort(context, error, call.request_id, call.trace)

    def _call(self, rpc: str, request: object, context: Context) -> _Call:
        metadata = tuple(context.invocation_metadata() or ())
        request_id = request_id_of(_chosen_id(request), metadata)
        call = _Call(rpc, request_id, self._deadline(context), CURRENT.get())
        call.trace = context_in(metadata)
        tracer = self._generator.tracer
        if tracer is not None and rpc in GENERATING:
            call.span = start_call_span(tracer, rpc, request_id, call.trace)
            call.trace = call.span.span.context
        return call

    def _deadline(self, context: Context) -> float:
        remaining = context.time_remaining()
        if remaining is None:
            remaining = self.default_deadline_seconds
        return asyncio.get_running_loop().time() + remaining

    def _code_of_cancellation(self, call: _Call) -> grpc.StatusCode:
        if self._is_stopping:
            return grpc.StatusCode.UNAVAILABLE
        is_late = asyncio.get_running_loop().time() >= call.deadline - _DEADLINE_SLACK_SECONDS
        return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED

    def _end(self, call: _Call, code: grpc.StatusCode, error: PacelineError | None) -> None:
        figures, num_emitted = None, 0
        if call.relay is not None:
            call.relay.close()
            self._running.discard(call.relay)
            figures = call.relay.figures()
            # Resumed tokens are not this call's; a stop string among them leaves fewer than came.
            num_emitted = max(figures.completion_tokens - call.num_resumed, 0)
        if call.lease is not None:
            call.lease.charge(num_emitted)
            call.lease.close()
        self._generator.counters.increment("requests", call.rpc, code.name)
        if figures is not None:
            self.on_request_end(figures, num_emitted)
        if call.span is not None:
            call.span.end(code.name, call.relay)
        log_request(
            rpc=call.rpc,
            request_id=call.request_id,
            trace_id=call.trace.trace_id,
            code=code.name,
            cause=_cause(error) if error else "",
            figures=figures,
            metadata=call.metadata,
            caller=call.caller,
        )


def _ignore(figures: RequestFigures, num_emitted: int) -> None:
    pass


def _stopping() -> Unavailable:
    return Unavailable(
        "the gateway stopped before the answer was complete; what was sent is valid: send the "
        "request again, or go on from the ids",
        reason="GATEWAY_STOPPING",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )


def _cause(error: PacelineError) -> str:
    """Return what the log may say: messages about a request can quote it."""
    if isinstance(error, InvalidRequest | NotFound):
        return f"{error.reason} {error.field}".rstrip()
    return error.message


def _chosen_id(request: object) -> str:
    if isinstance(request, messages.StreamGenerateRequest):
        request = request.request
    return request.request_id if isinstance(request, messages.GenerateRequest) else ""


def _check_readable(request: object) -> None:
    if isinstance(request, Unreadable):
        raise unreadable_message()


def _tell_identity(context: Context, call: _Call) -> None:
    context.set_trailing_metadata(identity_trailers(call.request_id, call.trace))
