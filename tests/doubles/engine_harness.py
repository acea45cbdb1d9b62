"""Drives a ``StepEngine`` by hand: submit requests, feed trees, collect what is emitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.errors import PacelineError
from paceline.tree import TokenTree
from verify_service.engine.sampling import FinishReason
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import (
    PoolUp,
    SequenceStep,
    SessionOpened,
    Submit,
    TokenLogprobs,
    TreeFact,
)

POOL = "scripted"

ProposeTree = Callable[[Sequence[int]], TokenTree]
"""From the committed tokens to a tree that continues them."""


@dataclass
class Emitted:
    """Everything that came out for one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    steps: list[SequenceStep] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: PacelineError | None = None


class Harness:
    """One engine, the drafts that feed it, and what it emitted."""

    def __init__(self, engine: StepEngine, propose: ProposeTree | None = None) -> None:
        self.engine = engine
        self.propose = propose
        self.emitted: dict[int, Emitted] = {}
        self._committed: dict[int, list[int]] = {}
        if propose is not None:
            engine.apply(PoolUp(POOL))

    def submit(self, request: Request) -> None:
        """Start a sequence that drafts if there is a proposer."""
        drafting = Drafting(POOL if self.propose else "")
        self.emitted[request.sequence_id] = Emitted()
        self.engine.apply(Submit(request, drafting))

    def step(self) -> None:
        """Do one step, then offer a tree for every open session."""
        output = self.engine.step()
        self.engine.check_integrity()
        for step in output.steps:
            emitted = self.emitted[step.sequence_id]
            emitted.token_ids.extend(step.token_ids)
            emitted.logprobs.extend(step.logprobs)
            emitted.steps.append(step)
            emitted.finish_reason = step.finish_reason
        for failure in output.failures:
            self.emitted[failure.sequence_id].error = failure.error
        for event in output.session_events:
            if isinstance(event, SessionOpened):
                self._committed[event.request.sequence_id] = list(
                    event.request.prompt_token_ids + event.request.emitted_token_ids
                )
        self.offer_all()

    def offer_all(self) -> None:
        """Offer a tree for every open session."""
        for sequence_id in self._committed:
            self._offer(sequence_id)

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError("the engine did not come to an end")

    def _offer(self, sequence_id: int) -> None:
        emitted = self.emitted[sequence_id]
        if self.propose is None or emitted.finish_reason is not None:
            return
        committed = [*self._committed[sequence_id], *emitted.token_ids]
        tree = self.propose(committed)
        self.engine.apply(TreeFact(sequence_id, len(committed), tree, POOL))
