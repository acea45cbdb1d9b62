"""
Traces over services: what a service may ask for, and the W3C trace context between them.

Off by default, and then nothing here runs: ``open_tracer`` returns None and OpenTelemetry is never
imported (``otlp_tracing`` does, when an endpoint is set).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from paceline.errors import ConfigurationError

TRACEPARENT: Final = "traceparent"
"""Metadata key of the W3C trace context."""

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)

Attribute = str | int | float | bool


class SpanKind(Enum):
    """Which side of a call a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span(Protocol):
    """One piece of work in a trace; nothing is heard of it before it ends."""

    @property
    def traceparent(self) -> str:
        """The context to hand to whoever works for this span."""
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
        parent: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Attribute] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span under a ``traceparent``; without one it begins a trace."""
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


def valid_traceparent(value: object) -> str:
    """Return a trace context that a peer sent if it is one, else an empty string."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else ""


def traceparent_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return the trace context in a call's metadata; empty when there is none."""
    for key, value in metadata or ():
        if key == TRACEPARENT:
            return valid_traceparent(value)
    return ""


def trace_id_of(traceparent: str) -> str:
    """Return the 32 hexadecimal digits that name a trace; empty without a context."""
    return traceparent[3:35]


def log_fields(request_id: str, traceparent: str) -> dict[str, str]:
    """Return what a log line says about whose request it is; what is unknown is left out."""
    fields = {"request_id": request_id, "trace_id": trace_id_of(traceparent)}
    return {name: value for name, value in fields.items() if value}
