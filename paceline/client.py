"""The blocking client of a gateway, safe to share between threads. Its twin is ``async_client``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

import grpc

from paceline.channels import CLIENT_OPTIONS
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

DEFAULT_TIMEOUT_SECONDS: Final = 600.0
"""Long enough for thousands of tokens on a CPU; a request without an end never waits for ever."""

METADATA_TIMEOUT_SECONDS: Final = 30.0
"""For calls that generate nothing."""

_RequestT = TypeVar("_RequestT")
_T = TypeVar("_T")


class Client:
    """
    A connection to one gateway, or to the ready ones behind a name (``dns:///host:port``).

    Calls that reached no gateway are retried until the first message; every call has a deadline.
    Errors are those of ``paceline.errors``.
    """

    def __init__(self, target: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=CLIENT_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=CLIENT_OPTIONS)
        self._stub = GenerationServiceStub(self._channel)

    def stream(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[GenerationOptions],
    ) -> Generator[Event, None, None]:
        """Generate and yield events as they come; leaving the loop cancels the request."""
        request = messages.StreamGenerateRequest(request=request_to_proto(prompt, options))
        return self._events(request, timeout)

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Generate and return the whole answer, token ids included."""
        options.setdefault("return_token_ids", True)
        request = request_to_proto(prompt, options)
        return generation_from_proto(_answer(self._stub.Generate, request, timeout))

    def models(self) -> tuple[Model, ...]:
        """Return the models that the gateway serves."""
        request = messages.ListModelsRequest()
        answer = _answer(self._stub.ListModels, request, METADATA_TIMEOUT_SECONDS)
        return tuple(model_from_proto(model) for model in answer.models)

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatMessage] | None = None,
        model: str = "",
    ) -> Tokenization:
        """Return the token ids of a prompt, as generation would see them."""
        request = tokenize_request_to_proto(prompt, messages, model)
        answer = _answer(self._stub.Tokenize, request, METADATA_TIMEOUT_SECONDS)
        return tokenization_from_proto(answer)

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _events(
        self, request: messages.StreamGenerateRequest, timeout_seconds: float
    ) -> Generator[Event, None, None]:
        call = self._stub.StreamGenerate(request, timeout=timeout_seconds)
        try:
            for message in call:
                event = event_from_proto(message)
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()


def _answer(method: Callable[..., _T], request: object, timeout_seconds: float) -> _T:
    try:
        return method(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None
