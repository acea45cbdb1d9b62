"""
Whose request each session of a stream is: request id and trace context, for logs and spans.

The span of a session is the draft service's part of a request; an event tells of each proposal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from draft_service.drafter import Draft
from paceline.timeline import Timeline
from paceline.trace_context import TraceContext, log_fields
from paceline.tracing import Attribute, Span, SpanKind, Tracer

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_ID_CHARACTERS: Final = 256
"""Of a request id in logs and spans; the rest of a longer one is left out."""

_NODES, _MICROSECONDS = range(2)


@dataclass(slots=True)
class _Open:
    request_id: str
    trace: TraceContext
    opened_ns: int
    span: Span | None
    changed_ns: int
    """When the newest commit came that has no proposal yet; 0: there is none."""
    proposals: Timeline = field(default_factory=Timeline)


class SessionTraces:
    """The sessions of one stream, at most ``max_sessions``; further ones leave no trace."""

    def __init__(self, stream_id: int, tracer: Tracer | None, max_sessions: int) -> None:
        self._stream_id = stream_id
        self._tracer = tracer
        self._max_sessions = max_sessions
        self._sessions: dict[int, _Open] = {}

    def opened(self, session_id: int, request_id: str, trace: TraceContext) -> None:
        """Take note of a session, or that it was opened anew."""
        self.closed(session_id)
        if len(self._sessions) >= self._max_sessions:
            return
        request_id, span, now = request_id[:MAX_ID_CHARACTERS], None, time.time_ns()
        # Only a session of a traced request has a span: by itself it would tell nobody anything.
        if self._tracer is not None and trace.traceparent:
            started = self._tracer.start(
                "paceline.v1.DraftService/Draft",
                parent=trace,
                kind=SpanKind.SERVER,
                attributes={"paceline.request_id": request_id},
            )
            span = started if started.is_recording else None
        self._sessions[session_id] = _Open(request_id, trace, now, span, now)

    def committed(self, session_id: int) -> None:
        """Take note that a proposal is due."""
        if self._tracer is not None:
            session = self._sessions.get(session_id)
            if session is not None and session.span is not None:
                session.changed_ns = session.changed_ns or time.time_ns()

    def proposed(self, drafts: Mapping[int, Draft]) -> None:
        """Take note of the proposals of one message."""
        if self._tracer is None:
            return
        now = time.time_ns()
        for session_id, draft in drafts.items():
            session = self._sessions.get(session_id)
            if session is not None and session.span is not None:
                waited = now - session.changed_ns if session.changed_ns else 0
                session.proposals.add(now, draft.tree.num_nodes, waited // 1000)
                session.changed_ns = 0

    def closed(self, session_id: int) -> None:
        """Write the log line and end the span of a session."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        log.info(
            "session_closed",
            stream_id=self._stream_id,
            session_id=session_id,
            total_ms=round((time.time_ns() - session.opened_ns) / 1e6, 1),
            **log_fields(session.request_id, session.trace),
        )
        if session.span is not None:
            _end(session.span, session.proposals)

    def free(self) -> None:
        """Close all sessions: the stream has ended."""
        for session_id in list(self._sessions):
            self.closed(session_id)


def _end(span: Span, proposals: Timeline) -> None:
    for point in proposals:
        attributes: dict[str, Attribute] = {
            "nodes": point.sums[_NODES],
            "milliseconds": point.sums[_MICROSECONDS] / 1e3,
        }
        if point.num_entries > 1:
            attributes["proposals"] = point.num_entries
        span.event("proposal", attributes, point.time_ns)
    span.end(
        {
            "paceline.proposals": proposals.num_entries,
            "paceline.proposed_tokens": proposals.total(_NODES),
        }
    )
