"""The one log line of each request. It holds no prompt and no text."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from gateway.caller import Caller
from gateway.relay import RequestFigures

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def log_request(
    *,
    rpc: str,
    request_id: str,
    trace_id: str,
    code: str,
    cause: str,
    figures: RequestFigures | None,
    metadata: Mapping[str, str],
    caller: Caller,
) -> None:
    """Write the line of a request that has ended."""
    fields: dict[str, object] = {"rpc": rpc, "request_id": request_id, "code": code}
    if trace_id:
        fields["trace_id"] = trace_id
    if caller.name:
        fields |= {"caller": caller.name, "tenant": caller.tenant}
    if cause:
        fields["cause"] = cause
    if figures is not None:
        fields |= _fields(figures)
    if metadata:
        fields["metadata"] = dict(metadata)
    log.info("request_finished", **fields)


def log_refused(*, rpc: str, request_id: str, code: str, reason: str) -> None:
    """Write the line of a call that did not get in; what it showed as a credential stays out."""
    log.info("request_refused", rpc=rpc, request_id=request_id, code=code, reason=reason)


def _fields(figures: RequestFigures) -> dict[str, object]:
    speculation = figures.speculation
    return {
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.completion_tokens,
        "queue_ms": round(1e3 * figures.queue_seconds, 1),
        "ttft_ms": round(1e3 * figures.time_to_first_token_seconds, 1),
        "total_ms": round(1e3 * figures.total_seconds, 1),
        "draft": speculation.pool,
        "num_spec_steps": speculation.num_spec_steps,
        "num_draft_tokens": speculation.num_draft_tokens,
        "mean_acceptance_length": round(speculation.mean_acceptance_length, 3),
        "fallbacks": [cause.name.lower() for cause in speculation.fallbacks],
        "verifiers": list(figures.verifiers),
        "failovers": figures.num_failovers,
    }
