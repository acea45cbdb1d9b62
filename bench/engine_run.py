"""Requests on a step engine by hand: no thread, no network, trees from any function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.demo_line import TINY_MODEL
from paceline.errors import PacelineError
from paceline.tree import TokenTree
from verify_service.engine.sampling import Fallback, FinishReason
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import (
    PoolUp,
    SequenceStep,
    SessionClosed,
    SessionCommitted,
    SessionEvent,
    SessionOpened,
    StepOutput,
    Submit,
    TokenLogprobs,
    TreeFact,
)
from verify_service.settings import VerifySettings
from verify_service.targets.registry import load_target

POOL: Final = "bench"
DRAFTED: Final = Drafting(POOL)
PLAIN: Final = Drafting(fallback=Fallback.REQUESTED)

ProposeTree = Callable[[int, Sequence[int]], TokenTree]
"""From a sequence id and its committed tokens to a tree that continues them."""


@dataclass(slots=True)
class Answer:
    """Everything that came out for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    matched_stop_token_id: int | None = None
    error: PacelineError | None = None
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, step: SequenceStep) -> None:
        """Take in one step."""
        self.token_ids.extend(step.token_ids)
        self.logprobs.extend(step.logprobs)
        self.num_drafted += step.num_drafted
        if step.token_ids and not step.is_prefill:
            self.num_steps += 1
            self.num_accepted += step.num_accepted
        self.finish_reason = step.finish_reason
        self.matched_stop_token_id = step.matched_stop_token_id

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None or self.error is not None


def tiny_engine(**config: object) -> StepEngine:
    """Return an engine on the repository's tiny trained model, on one thread."""
    target = load_target(VerifySettings(model=TINY_MODEL, num_threads=1))
    limits = {"draft_pools": (POOL,), **config}
    return StepEngine(target, EngineConfig(**limits))  # type: ignore[arg-type]  # field names


class EngineRun:
    """One engine and the answers that it gives."""

    def __init__(self, engine: StepEngine, propose: ProposeTree | None = None) -> None:
        self.engine = engine
        self.answers: dict[int, Answer] = {}
        self._propose = propose
        self._committed: dict[int, list[int]] = {}
        if propose is not None:
            engine.apply(PoolUp(POOL))

    def submit(self, request: Request, drafting: Drafting | None = None) -> None:
        """Start a request that drafts if there is a proposer, or as told."""
        self.answers[request.sequence_id] = Answer()
        self.engine.apply(Submit(request, drafting or (DRAFTED if self._propose else PLAIN)))

    def step(self) -> StepOutput:
        """Do one step, then offer trees for what it committed."""
        output = self.engine.step()
        for failure in output.failures:
            self.answers[failure.sequence_id].error = failure.error
        for step in output.steps:
            self.answers[step.sequence_id].add(step)
        touched = {self._follow(event) for event in output.session_events}
        self._offer(touched)
        return output

    def finish(self, requests: Iterable[Request]) -> list[Answer]:
        """Serve requests to their end and return their answers, in order."""
        asked = list(requests)
        for request in asked:
            self.submit(request)
        while self.engine.has_work():
            self.step()
        return [self.answers[request.sequence_id] for request in asked]

    def _follow(self, event: SessionEvent) -> int:
        match event:
            case SessionOpened(_, request, committed, _):
                self._committed[request.sequence_id] = list(committed)
                return request.sequence_id
            case SessionCommitted(_, sequence_id, base_len, token_ids):
                self._committed[sequence_id][base_len:] = token_ids
                return sequence_id
            case SessionClosed(_, sequence_id):
                self._committed.pop(sequence_id, None)
                return sequence_id

    def _offer(self, sequence_ids: Iterable[int]) -> None:
        for sequence_id in sequence_ids:
            committed = self._committed.get(sequence_id)
            if committed is not None and self._propose is not None:
                tree = self._propose(sequence_id, committed)
                self.engine.apply(TreeFact(sequence_id, len(committed), tree, POOL))
