"""
The client's part of a trace: a span around each call if the application uses OpenTelemetry.

The application chooses: unless it has imported ``opentelemetry.trace`` itself, nothing is imported
and nothing is sent. Spans go wherever the application's own go.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.trace_context import TRACEPARENT, TRACESTATE, span_context

Metadata = tuple[tuple[str, str], ...]


@contextmanager
def traced_call(rpc: str, metadata: Metadata) -> Iterator[Metadata]:
    """
    Yield a call's metadata, with the trace context if there is a trace.

    The span begins under the application's current one and ends with the block; it never becomes
    the current one, since a generator's caller runs in between.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield metadata
        return
    from opentelemetry import trace

    span = trace.get_tracer("paceline").start_span(
        f"paceline.v1.GenerationService/{rpc}",
        kind=trace.SpanKind.CLIENT,
        attributes={"rpc.system": "grpc", "rpc.method": rpc},
    )
    context = span.get_span_context()
    try:
        if not context.is_valid:
            yield metadata
            return
        state = context.trace_state.to_header()
        own = span_context(context.trace_id, context.span_id, context.trace_flags, state)
        stated = ((TRACESTATE, own.tracestate),) if own.tracestate else ()
        yield (*metadata, (TRACEPARENT, own.traceparent), *stated)
    except Exception as error:
        span.set_status(trace.StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        span.end()
