"""
The executor's loop: one ``step`` makes the calls of the recorded order, for one batch.

Acceptance is the package's exact match: the target draws a token per verified position, and a draft
is accepted while it equals what was drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.doubles.fake_tensorrt_llm.drafter_families import BaseResourceManager, Drafter
from tests.doubles.fake_tensorrt_llm.requests import Batch, LlmRequest, MakeBatch
from verify_service.targets.table import LogitsFunction


@dataclass
class SamplingChoice:
    """The request's parameters as the sampler reads them."""

    top_k: int | None
    top_p: float | None
    temperature: float | None
    stop_token_ids: list[int] | None
    end_id: int | None
    max_tokens: int

    @property
    def is_greedy(self) -> bool:
        """The package's rule, which temperature alone does not change."""
        return self.top_k in (None, 1) and self.top_p in (None, 0.0)


class FakeExecutor:
    """Requests, a target that is a function, and the user's drafter and resource manager."""

    def __init__(
        self,
        logits_of: LogitsFunction,
        drafter: Drafter,
        resource_manager: BaseResourceManager,
        make_batch: MakeBatch,
        *,
        num_drafts: int,
        max_batch_size: int = 8,
        max_kv_tokens: int = 100_000,
        with_dummies: bool = True,
    ) -> None:
        self.drafter = drafter
        self.resource_manager = resource_manager
        self.finished: list[LlmRequest] = []
        self.num_pauses = 0
        self.num_steps = 0
        self.chains: list[tuple[int | None, tuple[int, ...]]] = []
        self.on_step: Callable[[LlmRequest], None] = lambda request: None
        self._logits_of = logits_of
        self._make_batch = make_batch
        self._num_drafts = num_drafts
        self._max_batch_size = max_batch_size
        self._max_kv_tokens = max_kv_tokens
        self._with_dummies = with_dummies
        self._waiting: list[LlmRequest] = []
        self._active: list[LlmRequest] = []
        self._generator = random.Random(42)  # noqa: S311 one generator for all requests, as there

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._active)

    def rehearse(self) -> None:
        """
        Do what the package does in the middle of its start, to learn how much memory is left.

        It runs a step, shuts executor and managers down, and goes on with the same managers.
        """
        batch = self._make_batch([], self._dummies(), [])
        self.resource_manager.prepare_resources(batch)
        self.drafter.prepare_draft_tokens(batch, self.resource_manager)
        self.resource_manager.update_resources(batch)
        self.resource_manager.shutdown()

    def submit(self, request: LlmRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def cancel(self, client_id: int) -> None:
        """End a request."""
        for request in [*self._waiting, *self._active]:
            if request.py_client_id == client_id:
                request.finish_reason = "cancelled"
                self._end(request)

    def step(self) -> None:
        """Run one iteration."""
        self.num_steps += 1
        for request in self._active:
            request.py_last_draft_tokens = request.py_draft_tokens
            request.py_draft_tokens = [0] * self._num_drafts
        paused = self._pause()
        context = self._admit()
        generation = [r for r in self._active if r not in context]
        batch = self._make_batch(context, [*generation, *self._dummies()], paused)
        self.resource_manager.prepare_resources(batch)
        self.drafter.prepare_draft_tokens(batch, self.resource_manager)
        self._check_chains(generation)
        self.drafter.pad_draft_tokens_for_cuda_graph(batch)
        for request in context:
            self._emit(request, [self._draw(request, request.get_tokens(0))], 0)
        for request in generation:
            self._verify(request)
        for request in [r for r in batch.all_requests() if r.py_client_id is not None]:
            self.on_step(request)
            if request.finish_reason is not None:
                self._end(request)
        self.resource_manager.update_resources(batch)

    def _pause(self) -> list[LlmRequest]:
        paused: list[LlmRequest] = []
        while self._needed(self._active) > self._max_kv_tokens and len(self._active) > 1:
            request = self._active.pop()
            self.resource_manager.free_resources(request)
            request.pause()
            self._waiting.insert(0, request)
            paused.append(request)
            self.num_pauses += 1
        return paused

    def _admit(self) -> list[LlmRequest]:
        context: list[LlmRequest] = []
        while self._waiting and len(self._active) < self._max_batch_size:
            if self._active and self._needed([*self._active, self._waiting[0]]) > (
                self._max_kv_tokens
            ):
                break
            request = self._waiting.pop(0)
            self._active.append(request)
            context.append(request)
        return context

    def _needed(self, requests: list[LlmRequest]) -> int:
        return sum(r.get_num_tokens(0) + self._num_drafts + 1 for r in requests)

    def _dummies(self) -> list[LlmRequest]:
        if not self._with_dummies:
            return []
        dummy = LlmRequest(None, [0], 1, None)
        dummy.is_cuda_graph_dummy = True
        dummy.py_draft_tokens = [0] * self._num_drafts
        return [dummy]

    def _check_chains(self, requests: list[LlmRequest]) -> None:
        for request in requests:
            chain = request.py_draft_tokens
            if len(chain) > self._num_drafts or chain is request.py_last_draft_tokens:
                raise RuntimeError("illegal memory access")
            self.chains.append((request.py_client_id, tuple(chain)))

    def _verify(self, request: LlmRequest) -> None:
        tokens = request.get_tokens(0)
        emitted: list[int] = []
        num_accepted = 0
        for draft in [*request.py_draft_tokens, None]:
            drawn = self._draw(request, [*tokens, *emitted])
            emitted.append(drawn)
            if drawn != draft:
                break
            num_accepted += 1
        self._emit(request, emitted, num_accepted)

    def _emit(self, request: LlmRequest, tokens: list[int], num_accepted: int) -> None:
        choice: SamplingChoice = request.sampling  # type: ignore[assignment]  # ours
        request.py_decoding_iter += 1
        request.py_num_accepted_draft_tokens = num_accepted
        for token in tokens:
            request.add_new_token(token, 0)
            generated = request.get_num_tokens(0) - request.py_orig_prompt_len
            if token == choice.end_id:
                request.finish_reason = "stop"
            elif token in (choice.stop_token_ids or ()):
                request.finish_reason, request.stop_reason = "stop", token
            elif generated >= request.py_max_new_tokens:
                request.finish_reason = "length"
            if request.finish_reason is not None:
                return

    def _end(self, request: LlmRequest) -> None:
        for queue in (self._waiting, self._active):
            if request in queue:
                queue.remove(request)
        self.finished.append(request)
        self.resource_manager.free_resources(request)

    def _draw(self, request: LlmRequest, tokens: list[int]) -> int:
        logits = list(self._logits_of(tuple(tokens)))
        choice: SamplingChoice = request.sampling  # type: ignore[assignment]  # ours
        if choice.is_greedy:
            return max(range(len(logits)), key=lambda token: logits[token])
        scale = choice.temperature or 1.0
        best = max(logits)
        weights = [math.exp((logit - best) / scale) for logit in logits]
        return self._generator.choices(range(len(logits)), weights)[0]


def drain(executor: FakeExecutor, max_steps: int = 1000) -> None:
    """Step until nothing is left to do."""
    for _ in range(max_steps):
        if not executor.has_work:
            return
        executor.step()
    raise AssertionError("the executor did not come to an end")


def shape(batch: Batch) -> tuple[int, int]:
    """Return how many requests of each kind a batch has."""
    return len(batch.context_requests), len(batch.generation_requests)
