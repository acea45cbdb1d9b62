"""The total table between Paceline's exceptions and gRPC statuses with ``google.rpc`` details."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from paceline import errors

ERROR_DOMAIN = "paceline"

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
) -> errors.PacelineError:
    """Return the error that a numeric gRPC code stands for; unknown codes are ``EngineFailed``."""
    kind = _ERRORS.get(code, errors.EngineFailed)
    return kind(message, field=field, reason=reason, retry_after_seconds=retry_after_seconds)


def rich_status(error: errors.PacelineError) -> grpc.Status:
    """Return a status for ``context.abort_with_status``, with the details that apply."""
    packed = [_pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN))]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        packed.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        packed.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    message = status_pb2.Status(
        code=status_code(error).value[0], message=error.message, details=packed
    )
    return rpc_status.to_status(message)


def error_from_rpc(error: grpc.aio.AioRpcError) -> errors.PacelineError:
    """Return the error behind a failed call, its field, reason and retry hint restored."""
    field, reason, retry_after_seconds = "", "", None
    for packed in _details(error):
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry_info = error_details_pb2.RetryInfo()
        if packed.Unpack(info):
            reason = info.reason
        elif packed.Unpack(bad_request) and bad_request.field_violations:
            field = bad_request.field_violations[0].field
        elif packed.Unpack(retry_info):
            retry_after_seconds = retry_info.retry_delay.ToNanoseconds() / 1e9
    return error_from_code(
        error.code().value[0],
        error.details() or error.code().name,
        field=field,
        reason=reason,
        retry_after_seconds=retry_after_seconds,
    )


def _details(error: grpc.aio.AioRpcError) -> list[AnyMessage]:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return list(status_pb2.Status.FromString(value).details)
    return []


def _pack(message: object) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)  # type: ignore[arg-type]  # every google.rpc detail is a Message
    return packed
