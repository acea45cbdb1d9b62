"""The asyncio client of a gateway. Its twin for threads is ``client``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc.aio

from paceline.address import check_target
from paceline.channels import client_dialing
from paceline.client import (
    DEFAULT_TIMEOUT_SECONDS,
    METADATA_TIMEOUT_SECONDS,
    credential_metadata,
)
from paceline.client_tracing import Metadata, traced_call
from paceline.errors import ConfigurationError, PacelineError
from paceline.events import Event, Generation, Model, Tokenization
from paceline.generation_codec import (
    generation_from_proto,
    model_from_proto,
    tokenization_from_proto,
)
from paceline.generation_request import (
    ChatMessage,
    GenerationOptions,
    checked_timeout,
    request_to_proto,
    tokenize_request_to_proto,
)
from paceline.resumption import DEFAULT_MAX_RESUMES, ResumableStream
from paceline.status import error_from_rpc
from paceline.tls import DialTls
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import generation_service_pb2_grpc

_T = TypeVar("_T")


class AsyncClient:
    """
    A connection to one gateway, or to the ready ones behind a name (``dns:///host:port``).

    Calls that reached no gateway are retried until the first message; every call has a deadline.
    A stream whose gateway is lost goes on through another one, up to ``max_resumes`` times, with
    the tokens that it would have had. Errors are those of ``paceline.errors``; a target that is
    no address, or names no port, is a ``ConfigurationError`` at once.
    """

    def __init__(
        self,
        target: str,
        *,
        api_key: str | None = None,
        tls: DialTls | None = None,
        max_resumes: int = DEFAULT_MAX_RESUMES,
    ) -> None:
        check_target(target, "target")
        credentials, options = client_dialing(tls)
        self._channel = (
            grpc.aio.insecure_channel(target, options=options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=options)
        )
        self._max_resumes = max_resumes
        self._metadata = credential_metadata(api_key)
        self._open_stub = generation_service_pb2_grpc.GenerationServiceStub(self._channel)
        self._is_closed = False

    def stream(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[GenerationOptions],
    ) -> AsyncGenerator[Event, None]:
        """
        Generate and yield events as they come; leaving the loop cancels the request.

        The options are those of ``paceline.GenerationOptions``. Without ``return_token_ids=True``
        a ``Delta`` brings text only: its ``token_ids`` are empty.
        """
        request = request_to_proto(prompt, options)
        return self._events(
            ResumableStream(
                request, max_resumes=self._max_resumes, timeout_seconds=checked_timeout(timeout)
            )
        )

    async def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,  # noqa: ASYNC109 a gRPC deadline
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """
        Generate and return the whole answer, token ids included.

        The options are those of ``paceline.GenerationOptions``.
        """
        options.setdefault("return_token_ids", True)
        request = request_to_proto(prompt, options)
        with traced_call("Generate", self._metadata) as metadata:
            call = self._stub.Generate(request, timeout=checked_timeout(timeout), metadata=metadata)
            return generation_from_proto(await _answer(call))

    async def models(self) -> tuple[Model, ...]:
        """Return the models that the gateway serves."""
        call = self._stub.ListModels(
            messages.ListModelsRequest(),
            timeout=METADATA_TIMEOUT_SECONDS,
            metadata=self._metadata,
        )
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
        call = self._stub.Tokenize(
            request, timeout=METADATA_TIMEOUT_SECONDS, metadata=self._metadata
        )
        return tokenization_from_proto(await _answer(call))

    async def aclose(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._is_closed = True
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

    @property
    def _stub(self) -> generation_service_pb2_grpc.GenerationServiceAsyncStub:
        if self._is_closed:
            raise ConfigurationError("the client is closed; make a new one")
        return self._open_stub

    async def _events(self, stream: ResumableStream) -> AsyncGenerator[Event, None]:
        with traced_call("StreamGenerate", self._metadata) as metadata:
            while True:
                try:
                    async with aclosing(self._connection(stream, metadata)) as events:
                        async for event in events:
                            yield event
                    return
                except PacelineError as error:
                    pause = stream.pause_before_resume(error)
                    if pause is None:
                        raise stream.cause(error) from None
                await asyncio.sleep(pause)

    async def _connection(
        self, stream: ResumableStream, metadata: Metadata
    ) -> AsyncGenerator[Event, None]:
        call = self._stub.StreamGenerate(
            stream.request, timeout=stream.seconds_left, metadata=metadata
        )
        try:
            async for message in call:
                event = stream.take(message)
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
