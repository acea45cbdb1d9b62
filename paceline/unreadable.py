"""Messages that are none of their type: the caller's fault, and told so."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeVar

from google.protobuf.message import DecodeError

from paceline.errors import InvalidRequest

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
