"""The asyncio client of a gateway. Its twin for threads is ``client``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc.aio

from paceline.channels import CLIENT_OPTIONS
from paceline.client import DEFAULT_TIMEOUT_SECONDS, METADATA_TIMEOUT_SECONDS
from paceline.events import Event, Generation, Model, Tokenization
from paceline.generation_codec import (
    event_from_proto,
    generation_from_proto,
    model_from_proto,
    tokenization_from_proto,
)
from paceline.generation_request import (
    ChatMessage,
    GenerationOptions,
    request_to_proto,
    tokenize_request_to_proto,
)
from paceline.status import error_from_rpc
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub

_T = TypeVar("_T")


class AsyncClient:
    """
    A connection to one gateway, or to the ready ones behind a name (``dns:///host:port``).

    Calls that reached no gateway are retried until the first message; every call has a deadline.
    Errors are those of ``paceline.errors``.
    """

    def __init__(self, target: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=CLIENT_OPTIONS)
        self._stub = GenerationServiceStub(self._channel)

    def stream(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[GenerationOptions],
    ) -> AsyncGenerator[Event, None]:
        """Generate and yield events as they come; leaving the loop cancels the request."""
        request = messages.StreamGenerateRequest(request=request_to_proto(prompt, options))
        return self._events(request, timeout)

    async def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,  # noqa: ASYNC109 a gRPC deadline
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Generate and return the whole answer, token ids included."""
        options.setdefault("return_token_ids", True)
        request = request_to_proto(prompt, options)
        return generation_from_proto(
            await _answer(self._stub.Generate(request, timeout=timeout)),
        )

    async def models(self) -> tuple[Model, ...]:
        """Return the models that the gateway serves."""
        call = self._stub.ListModels(messages.ListModelsRequest(), timeout=METADATA_TIMEOUT_SECONDS)
        return tuple(model_from_proto(model) for model in (await _answer(call)).models)

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatMessage] | None = None,
        model: str = "",
    ) -> Tokenization:
        """Return the token ids of a prompt, as generation would see them."""
        request = tokenize_request_to_proto(prompt, messages, model)
        call = self._stub.Tokenize(request, timeout=METADATA_TIMEOUT_SECONDS)
        return tokenization_from_proto(await _answer(call))

    async def aclose(self) -> None:
        """Close the connection; running calls are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _events(
        self, request: messages.StreamGenerateRequest, timeout_seconds: float
    ) -> AsyncGenerator[Event, None]:
        call = self._stub.StreamGenerate(request, timeout=timeout_seconds)
        try:
            async for message in call:
                event = event_from_proto(message)
                if event is not None:
                    yield event
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()


async def _answer(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
