"""The total table between Paceline's exceptions and gRPC statuses with ``google.rpc`` details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from paceline import errors

ERROR_DOMAIN = "paceline"

MAX_ERROR_BYTES = 1000
"""
Of an error's message, which may quote a request or name many servers. It travels in trailers up to
three times, escaped; gRPC drops trailers of more than 8 KiB at random, and the status with them.
"""

_CODES: dict[type[errors.PacelineError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidTree: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Mismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.EngineFailed: grpc.StatusCode.INTERNAL,
    errors.PacelineError: grpc.StatusCode.INTERNAL,
}

_ERRORS: dict[int, type[errors.PacelineError]] = {
    grpc.StatusCode.INVALID_ARGUMENT.value[0]: errors.InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE.value[0]: errors.InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED.value[0]: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND.value[0]: errors.NotFound,
    grpc.StatusCode.UNAUTHENTICATED.value[0]: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED.value[0]: errors.PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: errors.Overloaded,
    grpc.StatusCode.UNAVAILABLE.value[0]: errors.Unavailable,
    grpc.StatusCode.ABORTED.value[0]: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED.value[0]: errors.DeadlineExceeded,
    grpc.StatusCode.CANCELLED.value[0]: errors.Cancelled,
    grpc.StatusCode.FAILED_PRECONDITION.value[0]: errors.Mismatch,
}

_GRPC_ITSELF = {
    grpc.StatusCode.UNIMPLEMENTED: (
        "the server has no such method: another service listens there, or one of another release; "
        "check the address"
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        "the deadline passed; what was sent is valid: allow more time or fewer tokens"
    ),
    grpc.StatusCode.UNAVAILABLE: (
        "the server cannot be reached or has gone; check the address and that it serves"
    ),
}
"""What it means where gRPC itself gives a status, and none of our servers."""


def status_code(error: errors.PacelineError) -> grpc.StatusCode:
    """Return the gRPC code of an error."""
    return _CODES[type(error)]


def error_from_code(
    code: int,
    message: str,
    *,
    field: str = "",
    reason: str = "",
    retry_after_seconds: float | None = None,
    quota: str = "",
) -> errors.PacelineError:
    """Return the error that a numeric gRPC code stands for; unknown codes are ``EngineFailed``."""
    kind = _ERRORS.get(code, errors.EngineFailed)
    return kind(
        message,
        field=field,
        reason=reason,
        retry_after_seconds=retry_after_seconds,
        quota=quota,
    )


def rich_status(error: errors.PacelineError) -> grpc.Status:
    """Return a status for ``context.abort_with_status``, with the details that apply."""
    message = status_pb2.Status(
        code=status_code(error).value[0],
        message=_shortened(error.message),
        details=[_pack(detail) for detail in _details_of(error)],
    )
    return rpc_status.to_status(message)


def error_from_rpc(error: grpc.RpcError) -> errors.PacelineError:
    """Return the error behind a failed call, its field, reason and retry hint restored."""
    restored: dict[str, Any] = {}
    for packed in _details(error):
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry_info = error_details_pb2.RetryInfo()
        quota_failure = error_details_pb2.QuotaFailure()
        if packed.Unpack(info):
            restored["reason"] = info.reason
        elif packed.Unpack(bad_request) and bad_request.field_violations:
            restored["field"] = bad_request.field_violations[0].field
        elif packed.Unpack(retry_info):
            restored["retry_after_seconds"] = retry_info.retry_delay.ToNanoseconds() / 1e9
        elif packed.Unpack(quota_failure) and quota_failure.violations:
            restored["quota"] = quota_failure.violations[0].subject
    message = error.details() or error.code().name
    if not restored and error.code() in _GRPC_ITSELF:
        cause = f" ({message})" if error.code() is grpc.StatusCode.UNAVAILABLE else ""
        message = _GRPC_ITSELF[error.code()] + cause
    return error_from_code(error.code().value[0], message, **restored)


def _shortened(message: str) -> str:
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= MAX_ERROR_BYTES:
        return encoded.decode()
    return f"{encoded[:MAX_ERROR_BYTES].decode('utf-8', 'ignore')} ..."


def _details_of(error: errors.PacelineError) -> Iterator[object]:
    yield error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    if error.field:
        blamed = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_shortened(error.message)
        )
        yield error_details_pb2.BadRequest(field_violations=[blamed])
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        yield error_details_pb2.RetryInfo(retry_delay=delay)
    if error.quota:
        exceeded = error_details_pb2.QuotaFailure.Violation(
            subject=error.quota, description=_shortened(error.message)
        )
        yield error_details_pb2.QuotaFailure(violations=[exceeded])


def _details(error: grpc.RpcError) -> list[AnyMessage]:
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in metadata:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return list(status_pb2.Status.FromString(value).details)
    return []


def _pack(message: object) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)  # type: ignore[arg-type]  # every google.rpc detail is a Message
    return packed
