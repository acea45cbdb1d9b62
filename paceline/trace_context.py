"""The W3C trace context between services: where a piece of work stands in its trace."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
"""Metadata key of the trace and the span that work is done for."""

TRACESTATE: Final = "tracestate"
"""Metadata key of what the tracing systems on the way keep beside it."""

MAX_STATE_CHARACTERS: Final = 512
"""Of a ``tracestate``: as many as W3C asks everyone to hand on; a longer one is dropped whole."""

MAX_STATE_MEMBERS: Final = 32
"""Of a ``tracestate``: W3C's limit."""

_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_MEMBER: Final = re.compile(
    r"(?P<key>[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span to work for; without one both are empty."""

    traceparent: str = ""
    tracestate: str = ""
    """Handed on unread."""

    @property
    def trace_id(self) -> str:
        """The 32 hexadecimal digits that name the trace; empty without one."""
        return self.traceparent[3:35]


NO_TRACE: Final = TraceContext()


def span_context(trace_id: int, span_id: int, flags: int, tracestate: str) -> TraceContext:
    """Return the context of a span of our own."""
    return TraceContext(f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}", tracestate)


def received_context(traceparent: object, tracestate: object = "") -> TraceContext:
    """Return a context that a peer sent: what is not valid in it is dropped, never an error."""
    if not isinstance(traceparent, str) or not _PARENT.fullmatch(traceparent):
        return NO_TRACE
    return TraceContext(traceparent, _valid_state(tracestate))


def context_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> TraceContext:
    """Return the context in a call's metadata; a state may come in several entries."""
    parents, states = [], []
    for key, value in metadata or ():
        if key == TRACEPARENT:
            parents.append(value)
        elif key == TRACESTATE and isinstance(value, str):
            states.append(value)
    return received_context(parents[0] if parents else "", ",".join(states))


def log_fields(request_id: str, trace: TraceContext) -> dict[str, str]:
    """Return what a log line says about whose request it is; what is unknown is left out."""
    fields = {"request_id": request_id, "trace_id": trace.trace_id}
    return {name: value for name, value in fields.items() if value}


def _valid_state(value: object) -> str:
    """Return a state without its empty members; an empty string if W3C does not allow it."""
    if not isinstance(value, str) or len(value) > MAX_STATE_CHARACTERS:
        return ""
    members = [member for part in value.split(",") if (member := part.strip(" \t"))]
    keys = {found["key"] for member in members if (found := _MEMBER.fullmatch(member))}
    if len(members) > MAX_STATE_MEMBERS or len(keys) != len(members):
        return ""
    return ",".join(members)
