"""
Whose request each running sequence is: request id and trace context, for logs, spans and drafters.

The engine knows nothing of it. Spans of the phases are made when a sequence ends, from what the
edge noted; while one runs, a step costs a few additions, and without a tracer nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from paceline.timeline import Timeline
from paceline.trace_context import NO_TRACE, TraceContext, log_fields
from paceline.tracing import Attribute, Span, SpanKind, Tracer
from verify_service.engine.steps import SequenceStep

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_ID_CHARACTERS: Final = 256
"""Of a request id in logs and spans; the rest of a longer one is left out."""

_TOKENS, _DRAFTED, _ACCEPTED = range(3)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sequence comes from; both may be empty."""

    request_id: str = ""
    trace: TraceContext = NO_TRACE


@dataclass(slots=True)
class _Running:
    origin: Origin
    """Its context is the sequence's own span, if there is one."""
    opened_ns: int
    span: Span | None
    steps: Timeline = field(default_factory=Timeline)
    queue_seconds: float = 0.0
    num_cached_prompt_tokens: int = 0
    first_token_ns: int = 0


class SequenceTraces:
    """The origins and spans of all sequences of one verifier; one entry for each that runs."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._running: dict[int, _Running] = {}

    def opened(self, sequence_id: int, request_id: str, trace: TraceContext, rpc: str) -> None:
        """Take note of a sequence that the engine has accepted."""
        request_id, span = request_id[:MAX_ID_CHARACTERS], None
        if self._tracer is not None:
            span = self._tracer.start(
                f"paceline.v1.VerifyService/{rpc}",
                parent=trace,
                kind=SpanKind.SERVER,
                attributes={"paceline.request_id": request_id},
            )
            trace = span.context
        is_recorded = span is not None and span.is_recording
        self._running[sequence_id] = _Running(
            Origin(request_id, trace), time.time_ns(), span if is_recorded else None
        )

    def origin(self, sequence_id: int) -> Origin:
        """Return where a sequence comes from."""
        running = self._running.get(sequence_id)
        return Origin() if running is None else running.origin

    def observe(self, steps: Sequence[SequenceStep]) -> None:
        """Take note of what one engine step did for its sequences."""
        if self._tracer is None:
            return
        now = time.time_ns()
        for step in steps:
            running = self._running.get(step.sequence_id)
            if running is not None and running.span is not None and step.token_ids:
                _note(running, step, now)

    def ended(self, sequence_id: int, outcome: str, *, failed: bool = False) -> None:
        """Write the log line and the spans of a sequence; ``outcome`` is its finish or error."""
        running = self._running.pop(sequence_id, None)
        if running is None:
            return
        seconds = (time.time_ns() - running.opened_ns) / 1e9
        log.info(
            "sequence_ended",
            sequence_id=sequence_id,
            outcome=outcome,
            total_ms=round(1e3 * seconds, 1),
            **log_fields(running.origin.request_id, running.origin.trace),
        )
        if running.span is not None and self._tracer is not None:
            _end(self._tracer, running, running.span, outcome, failed=failed)


def _note(running: _Running, step: SequenceStep, now: int) -> None:
    if not running.first_token_ns:
        running.first_token_ns = now
        running.queue_seconds = step.queue_seconds
        running.num_cached_prompt_tokens = step.num_cached_prompt_tokens
    if not step.is_prefill:
        running.steps.add(now, len(step.token_ids), step.num_drafted, step.num_accepted)


def _end(tracer: Tracer, running: _Running, span: Span, outcome: str, *, failed: bool) -> None:
    """Make the spans of queue, prefill and decoding, whose times are known now."""
    if running.first_token_ns:
        parent = span.context
        queued_ns = running.opened_ns + round(1e9 * running.queue_seconds)
        queued_ns = min(queued_ns, running.first_token_ns)
        tracer.start("queue", parent=parent, start_ns=running.opened_ns).end(time_ns=queued_ns)
        tracer.start("prefill", parent=parent, start_ns=queued_ns).end(
            {"paceline.cached_prompt_tokens": running.num_cached_prompt_tokens},
            time_ns=running.first_token_ns,
        )
        _end_decoding(tracer, running, parent)
    span.end(
        {"paceline.outcome": outcome, **_totals(running.steps)}, error=outcome if failed else ""
    )


def _end_decoding(tracer: Tracer, running: _Running, parent: TraceContext) -> None:
    decoding = tracer.start("decode", parent=parent, start_ns=running.first_token_ns)
    last_ns = running.first_token_ns
    for point in running.steps:
        last_ns = point.time_ns
        attributes: dict[str, Attribute] = {
            "tokens": point.sums[_TOKENS],
            "drafted": point.sums[_DRAFTED],
            "accepted": point.sums[_ACCEPTED],
        }
        if point.num_entries > 1:
            attributes["steps"] = point.num_entries
        decoding.event("step", attributes, point.time_ns)
    decoding.end(_totals(running.steps), time_ns=last_ns)


def _totals(steps: Timeline) -> dict[str, Attribute]:
    return {
        "paceline.steps": steps.num_entries,
        "paceline.draft_tokens": steps.total(_DRAFTED),
        "paceline.accepted_tokens": steps.total(_ACCEPTED),
    }
