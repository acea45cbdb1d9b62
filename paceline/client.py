"""The blocking client of a gateway, safe to share between threads. Its twin is ``async_client``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

import grpc

from paceline.address import check_target
from paceline.channels import client_dialing
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
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub

DEFAULT_TIMEOUT_SECONDS: Final = 600.0
"""Long enough for thousands of tokens on a CPU; a request without an end never waits for ever."""

METADATA_TIMEOUT_SECONDS: Final = 30.0
"""For calls that generate nothing."""

MAX_KEY_CHARACTERS: Final = 8192
"""Of an API key or a token: more would not fit into what servers read as headers."""

_API_KEY: Final = re.compile(rf"[!-~]{{1,{MAX_KEY_CHARACTERS}}}")
_RequestT = TypeVar("_RequestT")
_T = TypeVar("_T")


class Client:
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
            grpc.insecure_channel(target, options=options)
            if credentials is None
            else grpc.secure_channel(target, credentials, options=options)
        )
        self._max_resumes = max_resumes
        self._metadata = credential_metadata(api_key)
        self._open_stub = GenerationServiceStub(self._channel)
        self._is_closed = False

    def stream(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[GenerationOptions],
    ) -> Generator[Event, None, None]:
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

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """
        Generate and return the whole answer, token ids included.

        The options are those of ``paceline.GenerationOptions``.
        """
        options.setdefault("return_token_ids", True)
        request = request_to_proto(prompt, options)
        with traced_call("Generate", self._metadata) as metadata:
            return generation_from_proto(
                self._answer(self._stub.Generate, request, checked_timeout(timeout), metadata)
            )

    def models(self) -> tuple[Model, ...]:
        """Return the models that the gateway serves."""
        request = messages.ListModelsRequest()
        answer = self._answer(self._stub.ListModels, request, METADATA_TIMEOUT_SECONDS)
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
        answer = self._answer(self._stub.Tokenize, request, METADATA_TIMEOUT_SECONDS)
        return tokenization_from_proto(answer)

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._is_closed = True
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

    @property
    def _stub(self) -> GenerationServiceStub:
        if self._is_closed:
            raise ConfigurationError("the client is closed; make a new one")
        return self._open_stub

    def _events(self, stream: ResumableStream) -> Generator[Event, None, None]:
        with traced_call("StreamGenerate", self._metadata) as metadata:
            while True:
                try:
                    yield from self._connection(stream, metadata)
                    return
                except PacelineError as error:
                    pause = stream.pause_before_resume(error)
                    if pause is None:
                        raise stream.cause(error) from None
                time.sleep(pause)

    def _connection(
        self, stream: ResumableStream, metadata: Metadata
    ) -> Generator[Event, None, None]:
        call = self._stub.StreamGenerate(
            stream.request, timeout=stream.seconds_left, metadata=metadata
        )
        try:
            for message in call:
                event = stream.take(message)
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()

    def _answer(
        self,
        method: Callable[..., _T],
        request: object,
        timeout_seconds: float,
        metadata: Metadata | None = None,
    ) -> _T:
        try:
            return method(request, timeout=timeout_seconds, metadata=metadata or self._metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


def credential_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """
    Return the metadata that shows an API key or a token; none without one.

    Raises ``ConfigurationError`` for what cannot be one.
    """
    if api_key is None:
        return ()
    check_api_key(api_key, "api_key")
    return (("authorization", f"Bearer {api_key}"),)


def check_api_key(api_key: object, source: str) -> None:
    """Raise ``ConfigurationError`` naming the source of a key that no header can carry."""
    if not isinstance(api_key, str) or not _API_KEY.fullmatch(api_key):
        raise ConfigurationError(
            f"{source}: an API key or token is one line of 1 to {MAX_KEY_CHARACTERS} printable "
            "ASCII characters without blanks; check it"
        )
