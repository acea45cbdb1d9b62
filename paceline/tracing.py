"""
Traces over services: what a service may ask for (``trace_context`` is what it hands on).

Off by default, and then nothing here runs: ``open_tracer`` returns None and OpenTelemetry is never
imported (``otlp_tracing`` does, when an endpoint is set).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from paceline.errors import ConfigurationError
from paceline.trace_context import NO_TRACE, TraceContext

Attribute = str | int | float | bool


class SpanKind(Enum):
    """Which side of a call a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span(Protocol):
    """One piece of work in a trace; nothing is heard of it before it ends."""

    @property
    def context(self) -> TraceContext:
        """What to hand to whoever works for this span."""
        ...

    @property
    def is_recording(self) -> bool:
        """Whether the trace was sampled; if not, details need not be collected."""
        ...

    def event(self, name: str, attributes: Mapping[str, Attribute], time_ns: int) -> None:
        """Note something that happened at a time of the wall clock."""
        ...

    def end(
        self,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        error: str = "",
        time_ns: int | None = None,
    ) -> None:
        """End the span, with an error's name if it failed; now unless a time is given."""
        ...


class Tracer(Protocol):
    """Makes spans and sends those that have ended, without ever holding a service up."""

    def start(
        self,
        name: str,
        *,
        parent: TraceContext = NO_TRACE,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Attribute] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span under another; without one it begins a trace."""
        ...

    async def aclose(self) -> None:
        """Send what is left, within a few seconds."""
        ...


def open_tracer(service: str, endpoint: str, ratio: float) -> Tracer | None:
    """
    Return what sends a service's spans to an OTLP endpoint; None when none is set.

    ``ratio`` is the share of traces begun here that are recorded. Raises ``ConfigurationError``
    for an endpoint that is no URL, and when the extra ``telemetry`` is not installed.
    """
    if not endpoint:
        return None
    check_tracing(endpoint)
    from paceline.otlp_tracing import OtlpTracer

    return OtlpTracer(service, endpoint, ratio)


def check_tracing(endpoint: str) -> None:
    """
    Raise ``ConfigurationError`` if ``open_tracer`` could not send to an endpoint; empty: none.

    For services that take long to start: it opens nothing.
    """
    if not endpoint:
        return
    if not re.fullmatch(r"https?://[^\s/]+/?", endpoint):
        raise ConfigurationError(
            f"setting otlp_endpoint: {endpoint!r} is no endpoint; give the gRPC port of an OTLP "
            "collector as http://HOST:4317, or with https:// for TLS"
        )
    try:
        import paceline.otlp_tracing  # noqa: F401
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("opentelemetry"):
            raise
        raise ConfigurationError(
            "setting otlp_endpoint needs OpenTelemetry: run `pip install '.[telemetry]'` in a "
            "clone, or unset it"
        ) from None
