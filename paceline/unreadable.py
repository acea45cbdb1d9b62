"""Messages that are none of their type: the caller's fault, and told so."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from paceline.errors import InvalidRequest
from paceline.status import rich_status

if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Answer: TypeAlias = Callable[[object, grpc.aio.ServicerContext[Any, Any]], Awaitable[object]]
    Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]

_T = TypeVar("_T")


def unreadable_message() -> InvalidRequest:
    """Return the error that a call with such a message ends in."""
    return InvalidRequest(
        "the message cannot be read: it is not of this method's type, or a text in it is not "
        "UTF-8; generate stubs from the protos of this release",
        reason="UNREADABLE_MESSAGE",
    )


async def readable(messages: AsyncIterable[_T]) -> AsyncIterator[_T]:
    """Yield a stream's messages; raises ``InvalidRequest`` at one that cannot be read."""
    try:
        async for message in messages:
            yield message
    except DecodeError:
        raise unreadable_message() from None


class ReadableCalls(grpc.aio.ServerInterceptor):
    """Ends calls of one message and one answer in ``InvalidRequest`` if it cannot be read."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the method's handler; one that takes a single message checks it first."""
        handler = await continuation(handler_call_details)
        return handler if handler is None or not handler.unary_unary else _checking(handler)


def _checking(handler: Handler) -> Handler:
    parse, answer = handler.request_deserializer, cast("Answer", handler.unary_unary)

    def parsed(content: bytes) -> object:
        try:
            return parse(content) if parse is not None else content
        except DecodeError as error:
            return error

    async def checked(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
        if isinstance(request, DecodeError):
            await context.abort_with_status(rich_status(unreadable_message()))
        return await answer(request, context)

    changed: Handler = grpc.unary_unary_rpc_method_handler(
        checked, request_deserializer=parsed, response_serializer=handler.response_serializer
    )
    return changed
