"""A generation's span at the gateway: the root of what verifiers and drafters add below it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from gateway.relay import Relay
from paceline.trace_context import TraceContext
from paceline.tracing import Attribute, Span, SpanKind, Tracer

FAULTS: Final = frozenset({"INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNKNOWN", "DATA_LOSS"})
"""Statuses that are the server's fault; a caller's mistake is no error of the span."""


@dataclass(frozen=True, slots=True)
class CallSpan:
    """The span of one call and when it began."""

    span: Span
    started_ns: int

    def end(self, code: str, relay: Relay | None) -> None:
        """End it with the call's status and with what a generation took."""
        attributes: dict[str, Attribute] = {"rpc.grpc.status": code}
        if relay is not None and self.span.is_recording:
            attributes |= _figures(relay)
            self._note_moments(relay)
        self.span.end(attributes, error=code if code in FAULTS else "")

    def _note_moments(self, relay: Relay) -> None:
        admitted_ns = self.started_ns + round(1e9 * relay.options.admission_seconds)
        self.span.event("admitted", {}, admitted_ns)
        figures = relay.figures()
        if figures.completion_tokens:
            first_ns = self.started_ns + round(1e9 * figures.time_to_first_token_seconds)
            self.span.event("first_token", {}, first_ns)


def start_call_span(tracer: Tracer, rpc: str, request_id: str, parent: TraceContext) -> CallSpan:
    """Start the span of a call, under the caller's if it sent a trace context."""
    started_ns = time.time_ns()
    span = tracer.start(
        f"paceline.v1.GenerationService/{rpc}",
        parent=parent,
        kind=SpanKind.SERVER,
        attributes={"rpc.system": "grpc", "rpc.method": rpc, "paceline.request_id": request_id},
        start_ns=started_ns,
    )
    return CallSpan(span, started_ns)


def _figures(relay: Relay) -> dict[str, Attribute]:
    figures = relay.figures()
    return {
        "gen_ai.request.model": relay.options.model,
        "gen_ai.usage.input_tokens": figures.prompt_tokens,
        "gen_ai.usage.output_tokens": figures.completion_tokens,
        "paceline.queue_seconds": figures.queue_seconds,
        "paceline.draft_pool": figures.speculation.pool,
        "paceline.steps": figures.speculation.num_spec_steps,
        "paceline.draft_tokens": figures.speculation.num_draft_tokens,
        "paceline.accepted_tokens": figures.speculation.num_accepted_draft_tokens,
        "paceline.failovers": figures.num_failovers,
    }
