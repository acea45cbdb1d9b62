"""
Spans through the OpenTelemetry SDK to an OTLP collector. Imported only when tracing is on.

The queue is bounded, exports have a deadline and run in a thread of their own; when the collector
is slow or gone, spans are dropped and serving goes on. The ``OTEL_*`` variables for headers,
certificates, compression, batches and resource attributes hold as the SDK defines them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from paceline.timeline import MAX_POINTS
from paceline.trace_context import NO_TRACE, TraceContext, span_context
from paceline.tracing import Attribute, SpanKind

log: structlog.stdlib.BoundLogger = structlog.get_logger()

EXPORT_SECONDS: Final = 5.0
"""Longest try to send one batch, retries included; ``OTEL_EXPORTER_OTLP_TIMEOUT`` replaces it."""

FLUSH_SECONDS: Final = 3.0
"""Longest time that sending the rest may add to a drain."""

COMPLAINT_SECONDS: Final = 60.0
"""Between two log lines about the same: a collector that is down fails every few seconds."""

_KINDS: Final = {
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
}


class OtlpSpan:
    """A span of the SDK."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._context = span.get_span_context()

    @property
    def context(self) -> TraceContext:
        """The W3C trace context; empty when the SDK is switched off by its environment."""
        context = self._context
        if not context.is_valid:
            return NO_TRACE
        state = context.trace_state.to_header()
        return span_context(context.trace_id, context.span_id, context.trace_flags, state)

    @property
    def is_recording(self) -> bool:
        """Whether the trace was sampled."""
        return self._span.is_recording()

    def event(self, name: str, attributes: Mapping[str, Attribute], time_ns: int) -> None:
        """Note something that happened at a time of the wall clock."""
        self._span.add_event(name, attributes, time_ns)

    def end(
        self,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        error: str = "",
        time_ns: int | None = None,
    ) -> None:
        """End the span, with an error's name if it failed; now unless a time is given."""
        if attributes:
            self._span.set_attributes(attributes)
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end(time_ns)


class OtlpTracer:
    """Sends one service's spans; a second one in the process is independent of it."""

    def __init__(self, service: str, endpoint: str, ratio: float) -> None:
        _hear_complaints()
        # An explicit timeout would rank above the environment's.
        exporter = OTLPSpanExporter(
            endpoint=endpoint, timeout=None if _has_timeout() else EXPORT_SECONDS
        )
        name = os.environ.get("OTEL_SERVICE_NAME") or f"paceline-{service}"
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create({"service.name": name, "service.version": _version()}),
            span_limits=SpanLimits(max_events=MAX_POINTS + 16),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paceline", _version())
        log.info("tracing", endpoint=endpoint, ratio=ratio)

    def start(
        self,
        name: str,
        *,
        parent: TraceContext = NO_TRACE,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Attribute] | None = None,
        start_ns: int | None = None,
    ) -> OtlpSpan:
        """Start a span under another; without one it begins a trace."""
        context = trace.set_span_in_context(_remote_span(parent))
        return OtlpSpan(
            self._tracer.start_span(
                name, context, kind=_KINDS[kind], attributes=attributes, start_time=start_ns
            )
        )

    async def aclose(self) -> None:
        """Send what is left, for at most ``FLUSH_SECONDS``."""
        loop = asyncio.get_running_loop()
        sent = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(sent.set)

        # The SDK may block for longer: a daemon thread holds no exit up, as a pool's would.
        threading.Thread(target=shut_down, name="tracing-flush", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await sent.wait()
        except TimeoutError:
            log.warning("traces_not_flushed", seconds=FLUSH_SECONDS)


class _Complaints(logging.Handler):
    """Turns what the SDK logs into our lines, each once in a while."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._last.get(record.name, -COMPLAINT_SECONDS) < COMPLAINT_SECONDS:
            return
        self._last[record.name] = now
        log.warning("traces_not_exported", cause=record.getMessage())


def _hear_complaints() -> None:
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Complaints) for handler in logger.handlers):
        logger.addHandler(_Complaints())
        logger.propagate = False


def _has_timeout() -> bool:
    return any(
        os.environ.get(name)
        for name in ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
    )


def _remote_span(parent: TraceContext) -> trace.Span:
    if not parent.traceparent:
        return trace.INVALID_SPAN
    _, trace_id, span_id, flags = parent.traceparent.split("-")
    return trace.NonRecordingSpan(
        trace.SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=_flags(flags),
            trace_state=trace.TraceState.from_header([parent.tracestate]),
        )
    )


def _flags(text: str) -> trace.TraceFlags:
    return trace.TraceFlags(int(text, 16) & trace.TraceFlags.SAMPLED)


def _version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"
