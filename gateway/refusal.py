"""How a call ends in an error: rich status, retry hint, request id. Who decides it: everyone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import grpc.aio

from gateway.call_identity import identity_trailers
from paceline.errors import PacelineError
from paceline.status import rich_status
from paceline.trace_context import NO_TRACE, TraceContext

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[object, object]

RETRY_PUSHBACK_TRAILER: Final = "grpc-retry-pushback-ms"


async def abort(
    context: Context, error: PacelineError, request_id: str, trace: TraceContext = NO_TRACE
) -> NoReturn:
    """End the call with the status of an error."""
    status = rich_status(error)
    identity = identity_trailers(request_id, trace)
    trailers = [*(status.trailing_metadata or ()), *identity]
    if error.retry_after_seconds is not None:
        milliseconds = max(1, round(1e3 * error.retry_after_seconds))
        trailers.append((RETRY_PUSHBACK_TRAILER, str(milliseconds)))
    await context.abort(status.code, status.details, tuple(trailers))
