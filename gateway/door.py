"""
What every call passes before its message is read: who calls, and can the message be understood?

Methods of our own service only: health and reflection answer everybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.call_identity import request_id_of
from gateway.caller import CURRENT
from gateway.counters import Counters
from gateway.credentials import Credentials
from gateway.refusal import abort
from gateway.request_log import log_refused
from paceline.errors import PacelineError
from paceline.status import status_code

if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]

OWN_METHODS: Final = "/paceline.v1.GenerationService/"


class Unreadable:
    """Stands for a message that is none of its type; every servicer method must refuse it."""


class Door(grpc.aio.ServerInterceptor):
    """Lets callers in whose credential is valid, and remembers who they are."""

    def __init__(self, credentials: Credentials, counters: Counters) -> None:
        self._credentials = credentials
        self._counters = counters

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the method's handler, or one that refuses the call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(OWN_METHODS):
            return handler
        headers = [
            value
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "authorization"
        ]
        try:
            caller = self._credentials.caller(headers)
        except PacelineError as error:
            request_id = request_id_of("", handler_call_details.invocation_metadata)
            return self._refusing(method.removeprefix(OWN_METHODS), error, request_id)
        CURRENT.set(caller)
        return _lenient(handler)

    def _refusing(self, rpc: str, error: PacelineError, request_id: str) -> Handler:
        async def refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            code = status_code(error).name
            self._counters.increment("requests", rpc, code)
            log_refused(rpc=rpc, request_id=request_id, code=code, reason=error.reason)
            await abort(context, error, request_id)

        # A streaming handler reads no message before it runs: strangers make us parse nothing.
        handler: Handler = grpc.stream_stream_rpc_method_handler(refuse)
        return handler


def _lenient(handler: Handler) -> Handler:
    """Return the handler with messages that cannot be parsed turned into ``Unreadable``."""
    parse = handler.request_deserializer

    def parse_or_mark(content: bytes) -> object:
        try:
            return parse(content) if parse is not None else content
        except DecodeError:
            return Unreadable()

    changed: Handler = handler._replace(request_deserializer=parse_or_mark)  # type: ignore[attr-defined]  # a named tuple
    return changed
