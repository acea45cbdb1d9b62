"""An OTLP collector that keeps what it is sent, over real gRPC in threads of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

Value = str | int | float | bool


EXPORT_THREADS = ("OtelBatch", "tracing-flush")
"""How the names of threads begin that send spans, longer than the drain that started them."""


def wait_for_exports(seconds: float = 30.0) -> None:
    """
    Wait until no thread sends spans any more; raises ``AssertionError`` if one stays.

    Between tries they draw from ``random``, which Hypothesis would notice in a test that follows.
    """
    until = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name.startswith(EXPORT_THREADS):
            thread.join(max(until - time.monotonic(), 0.0))
            assert not thread.is_alive(), f"{thread.name} still sends spans"


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event of a span."""

    name: str
    time_ns: int
    attributes: dict[str, Value]


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    """The W3C ``tracestate`` that the span was part of."""
    start_ns: int
    end_ns: int
    has_failed: bool
    attributes: dict[str, Value]
    events: tuple[SeenEvent, ...]


class TraceCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes in spans; as long as ``stalled`` is set, it answers nobody."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.stalled = threading.Event()
        self.released = threading.Event()
        self.resources: list[dict[str, Value]] = []
        self._spans: list[SeenSpan] = []
        self._lock = threading.Lock()

    def Export(  # noqa: N802 the stub's name
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Keep the spans of one batch."""
        del context
        if self.stalled.is_set():
            self.released.wait(30)
        with self._lock:
            for part in request.resource_spans:
                resource = _values(part.resource.attributes)
                self.resources.append(resource)
                service = str(resource["service.name"])
                self._spans += [
                    _seen(service, span) for scope in part.scope_spans for span in scope.spans
                ]
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, service: str = "", name: str = "") -> list[SeenSpan]:
        """Return what has arrived, in order of start."""
        with self._lock:
            found = [
                span
                for span in self._spans
                if service in ("", span.service) and name in ("", span.name)
            ]
        return sorted(found, key=lambda span: span.start_ns)

    async def until_seen(self, number: int, name: str, timeout_seconds: float = 15.0) -> None:
        """Return once some spans of a name have arrived."""
        async with asyncio.timeout(timeout_seconds):
            while len(self.spans(name=name)) < number:  # noqa: ASYNC110 - other threads fill it
                await asyncio.sleep(0.02)


@contextmanager
def running_collector() -> Iterator[TraceCollector]:
    """Run a collector on a free port until the block ends."""
    collector = TraceCollector()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        collector.released.set()
        server.stop(0).wait()


def _seen(service: str, span: trace_pb2.Span) -> SeenSpan:
    return SeenSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        state=span.trace_state,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        has_failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        events=tuple(
            SeenEvent(event.name, event.time_unix_nano, _values(event.attributes))
            for event in span.events
        ),
    )


def _values(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    found: Value = getattr(value, kind) if kind else ""
    return found
