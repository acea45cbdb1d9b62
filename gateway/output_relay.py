"""One output between its verifier and its text: the sink of one sequence's steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.generation import (
    DraftFallback,
    DraftingChoice,
    DraftingWish,
    FinishReason,
    SequenceRequest,
    Step,
)
from gateway.output import Ending, Output, Piece
from gateway.speculation_record import SpeculationRecord
from gateway.verifier_link import VerifierLink
from paceline.errors import DeadlineExceeded, EngineFailed, PacelineError, Unavailable
from paceline.trace_context import TraceContext
from paceline.tracing import Span, SpanKind, Tracer

VERIFIER_LOST = "VERIFIER_LOST"


class OutputObserver(Protocol):
    """Who is told of an output, synchronously and for every step."""

    def on_step(self) -> None:
        """Called when the output goes on: tokens can be taken."""

    def on_end(self) -> None:
        """Called when the output is complete or has lost its verifier."""


class OutputRelay:
    """
    Runs one sequence on one verifier at a time.

    What it has emitted is all that another verifier needs to go on, so ``place`` starts and resumes
    alike.
    """

    def __init__(
        self,
        index: int,
        request: SequenceRequest,
        output: Output,
        wish: DraftingWish,
        *,
        controller: DraftingController,
        counters: Counters,
        tracer: Tracer | None = None,
    ) -> None:
        self.index = index
        self.wish = wish
        self.priority = request.priority
        self.cached_prompt_tokens = 0
        self.queue_seconds = 0.0
        self.num_failovers = 0
        self.verifiers: list[str] = []
        self.refused_by: set[str] = set()
        """Verifiers that were asked and would not; those that were lost may be asked again."""
        self.observer: OutputObserver | None = None
        self._request = request
        self._output = output
        self._controller = controller
        self._counters = counters
        self._tracer = tracer
        self._span: Span | None = None
        self._link: VerifierLink | None = None
        self._number = 0
        self._failure: PacelineError | None = None
        self._num_resumed = len(output.token_ids)
        self._has_begun = False

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete."""
        return self._output.ending is not None

    @property
    def ending(self) -> Ending | None:
        """How the output ended."""
        return self._output.ending

    @property
    def statistics(self) -> SpeculationRecord:
        """The output's speculation figures."""
        return self._output.statistics

    @property
    def num_tokens(self) -> int:
        """Emitted tokens, those from before a resume included."""
        return len(self._output.token_ids)

    @property
    def num_new(self) -> int:
        """Tokens emitted for this request."""
        return self.num_tokens - self._num_resumed

    def take(self, min_tokens: int) -> Piece | None:
        """Return what the output gained; None while that is less, unless the output has ended."""
        output = self._output
        if output.ending is None and output.num_waiting < min_tokens:
            return None
        return output.take()

    def take_failure(self) -> PacelineError | None:
        """Return and forget why the sequence ended early."""
        failure, self._failure = self._failure, None
        return failure

    def place(self, link: VerifierLink) -> None:
        """Start on a verifier, after what has been emitted."""
        self._link = link
        self.verifiers.append(link.address)
        choice = self._controller.admit(link, self)
        self._note_choice(choice)
        emitted = tuple(self._output.token_ids)
        request = replace(
            self._request,
            emitted_token_ids=emitted,
            drafting=choice,
            trace=self._start_span(link),
        )
        self._number = link.open(request, self)

    def stop(self) -> None:
        """End the sequence on its verifier, if it runs."""
        if (link := self._detach()) is not None:
            link.cancel(self._number)

    def set_drafting(self, choice: DraftingChoice) -> None:
        """Use other drafts from now on."""
        if self._link is not None:
            self._note_choice(choice)
            self._link.set_drafting(self._number, choice)

    def on_step(self, step: Step) -> None:
        """Take in what a step emitted."""
        if not self._has_begun:
            self._has_begun = True
            self.cached_prompt_tokens = step.cached_prompt_tokens
            self.queue_seconds = step.queue_seconds
        self._controller.observe_step(self, step)
        if step.fallback:
            self._note_fallback(step.fallback)
        if step.finish_reason:
            self._take_last(step)
            return
        self._output.add(step)
        if self._output.ending is None:
            self._tell_step()
        else:
            self.stop()
            self._tell_end()

    def on_failure(self, error: PacelineError) -> None:
        """Take in that the verifier gave the sequence up."""
        link = self._detach(error.reason)
        if link is not None and error.reason != VERIFIER_LOST:
            self.refused_by.add(link.address)
        self._failure = error
        self._tell_end()

    def _take_last(self, step: Step) -> None:
        error = _early_end(step.finish_reason)
        self._output.add(step if error is None else _without_finish(step))
        self._detach()
        if error is not None and not self.is_finished:
            self._failure = error
        self._tell_end()

    def _tell_step(self) -> None:
        if self.observer is not None:
            self.observer.on_step()

    def _tell_end(self) -> None:
        if self.observer is not None:
            self.observer.on_end()

    def _detach(self, error: str = "") -> VerifierLink | None:
        link, self._link = self._link, None
        if link is not None:
            self._controller.forget(link, self)
        if self._span is not None:
            self._span.end(error=error)
            self._span = None
        return link

    def _start_span(self, link: VerifierLink) -> TraceContext:
        """Start the span of a stay at a verifier and return the context for the verifier's own."""
        if self._tracer is None:
            return self._request.trace
        self._span = self._tracer.start(
            "paceline.v1.VerifyService/Attach",
            parent=self._request.trace,
            kind=SpanKind.CLIENT,
            attributes={
                "server.address": link.address,
                "paceline.output": self.index,
                "paceline.failovers": self.num_failovers,
            },
        )
        return self._span.context

    def _note_choice(self, choice: DraftingChoice) -> None:
        if choice.pool:
            self._output.statistics.pool = choice.pool
            self._output.statistics.pool_cause = choice.cause
        self._note_fallback(choice.fallback)

    def _note_fallback(self, cause: DraftFallback) -> None:
        if self._output.statistics.note_fallback(cause):
            self._counters.increment("draft_fallbacks", cause.name.lower())


def _early_end(reason: FinishReason) -> PacelineError | None:
    match reason:
        case FinishReason.CANCELLED:
            return Unavailable("the verifier cancelled the sequence", reason="VERIFIER_CANCELLED")
        case FinishReason.DEADLINE:
            return DeadlineExceeded("the deadline passed; what was sent so far is valid")
        case FinishReason.ERROR:
            return EngineFailed("the verifier met a fault of its own")
        case _:
            return None


def _without_finish(step: Step) -> Step:
    return step._replace(finish_reason=FinishReason.UNSPECIFIED)
