"""
Runs sequences on the package's ``LLM``: who may run, what each output means, when a run ends.

Lives on one event loop. The package batches and schedules by itself; here at most ``max_running``
sequences are inside it, and the rest wait in order of priority.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import structlog

from paceline.errors import EngineFailed, Overloaded, PacelineError
from paceline.tree import TokenTree
from verify_service.engine.draft_trie import DraftTrie
from verify_service.engine.goodput import GainMeter
from verify_service.engine.sampling import FinishReason
from verify_service.engine.sequence import Phase, Sequence
from verify_service.engine.steps import (
    CancelSequence,
    ChangeDrafting,
    Command,
    Load,
    PoolDown,
    PoolUp,
    SequenceFailure,
    SequenceStep,
    SessionLost,
    SessionRefused,
    Submit,
    TreeFact,
)
from verify_service.engine_backend import OnOutput
from verify_service.engines.tensorrt_llm.best_path import best_path
from verify_service.engines.tensorrt_llm.draft_sessions import DraftSessions
from verify_service.engines.tensorrt_llm.llm_arguments import EngineLimits, sampling_arguments
from verify_service.engines.tensorrt_llm.mailbox_server import MailboxServer
from verify_service.engines.tensorrt_llm.output_gatherer import OutputGatherer
from verify_service.engines.tensorrt_llm.package import Package
from verify_service.engines.tensorrt_llm.package_view import Completion, Llm, RequestHandle
from verify_service.engines.tensorrt_llm.sequence_run import SequenceRun
from verify_service.engines.tensorrt_llm.wire_frames import (
    Committed,
    Fact,
    Forget,
    Frame,
    Placed,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SILENCE_SECONDS = 120.0
"""A running request without an output for this long means that the package's loop is dead."""
EMA_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """The loop's fixed limits."""

    limits: EngineLimits
    max_waiting: int = 256
    pools: tuple[str, ...] = ()
    silence_seconds: float = field(default=SILENCE_SECONDS)


class RequestLoop:
    """All sequences of one engine."""

    def __init__(
        self, llm: Llm, package: Package, config: LoopConfig, address: str, on_output: OnOutput
    ) -> None:
        self.worker = MailboxServer(address, self._take_frame)
        self._llm = llm
        self._package = package
        self._config = config
        self._limits = config.limits
        self._sessions = DraftSessions(
            config.pools, config.limits.max_draft_tokens, self.worker.post
        )
        self.outputs = OutputGatherer(on_output, self._sessions.take_events, self._load)
        self._runs: dict[int, SequenceRun] = {}
        self._by_client: dict[int, SequenceRun] = {}
        self._waiting: list[SequenceRun] = []
        self._running: set[int] = set()
        self._gain = GainMeter()
        self._step_seconds = 0.0

    async def aclose(self) -> None:
        """End every sequence without a word."""
        for run in list(self._runs.values()):
            self._forget(run)
        log.info("draft_counts", **self.worker.counts)
        await self.worker.aclose()

    def apply(self, command: Command) -> None:
        """Take one command."""
        match command:
            case Submit():
                self._submit(command)
            case PoolUp() | PoolDown():
                self._sessions.set_pool(command, list(self._runs.values()))
                self.outputs.wake()
            case _:
                run = self._runs.get(command.sequence_id)
                if run is not None:
                    self._apply_to(run, command)
                    self.outputs.wake()

    def _apply_to(self, run: SequenceRun, command: Command) -> None:
        match command:
            case CancelSequence():
                self._finish(run, FinishReason.CANCELLED)
            case ChangeDrafting(_, drafting):
                run.sequence.drafting = drafting
                self._sessions.changed(run)
            case TreeFact() if run.is_lockstep:
                self._propose(run, command)
            case TreeFact():
                self._sessions.fact(run, command)
            case SessionLost(pool, _):
                self._sessions.reopen(run, pool)
            case SessionRefused(pool, _, cause):
                self._sessions.refuse(run, pool, cause)

    def _submit(self, command: Submit) -> None:
        request = command.request
        sequence = Sequence(request, command.drafting, time.monotonic(), 0)
        run = SequenceRun(sequence, self._limits.context_length)
        self._runs[run.sequence_id] = run
        if request.deadline is not None:
            loop = asyncio.get_running_loop()
            left = request.deadline - time.monotonic()
            run.expiry = loop.call_later(max(left, 0), self._finish, run, FinishReason.DEADLINE)
        if run.room <= 0:
            self._finish(run, FinishReason.LENGTH)
        elif not run.is_lockstep:
            self._enqueue(run)

    def _propose(self, run: SequenceRun, fact: TreeFact) -> None:
        run.proposals.append(fact)
        if run.task is None and run not in self._waiting:
            self._enqueue(run)

    def _enqueue(self, run: SequenceRun) -> None:
        is_full = len(self._running) >= self._limits.max_running
        if is_full and len(self._waiting) >= self._config.max_waiting:
            message = f"{self._config.max_waiting} requests are waiting already"
            self._fail(run, Overloaded(message, retry_after_seconds=1.0))
            return
        bisect.insort(self._waiting, run, key=lambda each: each.sequence.rank())
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._limits.max_running:
            run = self._waiting.pop(0)
            self._running.add(run.sequence_id)
            if run.sequence.first_scheduled is None:
                run.sequence.first_scheduled = time.monotonic()
            run.task = asyncio.create_task(self._guarded(run))

    async def _guarded(self, run: SequenceRun) -> None:
        try:
            await (self._turn(run) if run.is_lockstep else self._stream(run))
        except PacelineError as error:
            self._fail(run, error)
        except Exception as error:  # the package raises kinds of its own
            log.exception("request_failed")
            self._fail(run, EngineFailed(f"TensorRT-LLM failed: {error}"))

    async def _stream(self, run: SequenceRun) -> None:
        sequence = run.sequence
        sequence.phase = Phase.RUNNING
        self._generate(run, run.room)
        self._sessions.sync(run)
        self.outputs.wake()
        before = time.monotonic()
        async for completion in self._completions(run):
            token_ids = run.take(completion)
            if not token_ids and completion.finish_reason is None:
                continue
            base_len, is_decode = len(sequence.token_ids), sequence.has_emitted
            step = run.step(token_ids, completion.finish_reason, self._sessions.cause_for(run))
            now = time.monotonic()
            if is_decode:
                self._measure(step, now - before)
            before = now
            if not run.finished:
                self._sessions.committed(run, base_len, token_ids)
            self.outputs.add(step)
            if run.finished:
                self._forget(run)
                return
        raise EngineFailed("TensorRT-LLM ended a request without a reason")

    async def _turn(self, run: SequenceRun) -> None:
        """
        Answer one proposal of a lockstep sequence.

        The package cannot pause a sequence for a tree, so each proposal is a request of its own
        for as many tokens as it can settle; the prefix cache spares most of its prefill. The
        answer follows from the target's tokens alone, whether the drafts arrived in time or not.
        """
        path = self._path(run, run.proposals.popleft())
        wanted = min(len(path) + 1, run.room)
        handle = self._generate(run, wanted)
        if path:
            base_len = len(run.sequence.token_ids)
            self.worker.post(Fact(handle.request_id, base_len, TokenTree.chain(path)))
        emitted: list[int] = []
        async for completion in self._completions(run):
            emitted.extend(run.take(completion))
            emitted = emitted[: _num_settled(emitted, path)]
            stops = run.sequence.request.limits.stop_token_ids
            is_settled = len(emitted) >= wanted or emitted != path[: len(emitted)]
            if is_settled or completion.finish_reason or stops.intersection(emitted[-1:]):
                break
        self._release(run)
        self.outputs.add(run.verdict(tuple(emitted), len(path)))
        if run.finished:
            self._forget(run)
        elif run.proposals:
            self._enqueue(run)

    def _path(self, run: SequenceRun, fact: TreeFact) -> list[int]:
        trie = DraftTrie(max(fact.tree.num_nodes, 1))
        trie.merge(fact.base_len, fact.tree, run.sequence.token_ids)
        return best_path(trie.root, min(self._limits.max_draft_tokens, run.room - 1))

    def _generate(self, run: SequenceRun, max_tokens: int) -> RequestHandle:
        sequence = run.sequence
        arguments = sampling_arguments(
            sequence.request.sampling,
            max_tokens=max_tokens,
            stop_token_ids=sequence.request.limits.stop_token_ids,
        )
        extra = {"cache_salt": sequence.salt} if self._package.takes_cache_salt else {}
        handle = self._llm.generate_async(
            {"prompt_token_ids": list(sequence.token_ids)},
            self._package.sampling_params(**arguments),
            streaming=True,
            **extra,
        )
        run.begin(handle)
        self._by_client[handle.request_id] = run
        return handle

    async def _completions(self, run: SequenceRun) -> AsyncIterator[Completion]:
        """Yield the output after each engine step; raises ``EngineFailed`` on silence."""
        handle = run.handle
        if handle is None:
            return
        outputs = aiter(handle)
        while True:
            try:
                async with asyncio.timeout(self._config.silence_seconds):
                    await anext(outputs)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise EngineFailed(
                    f"TensorRT-LLM was silent for {self._config.silence_seconds:g} s"
                ) from None
            yield handle.outputs[0]

    def _take_frame(self, frame: Frame) -> None:
        run = self._by_client.get(getattr(frame, "client_id", -1))
        if run is None:
            return
        match frame:
            case Placed(_, base_len, num_drafted):
                run.placed(base_len, num_drafted)
            case Committed(_, base_len, _, token_ids) if not run.is_lockstep:
                self._sessions.committed(run, base_len, token_ids)
                self.outputs.wake()

    def _measure(self, step: SequenceStep, seconds: float) -> None:
        self._step_seconds += EMA_WEIGHT * (seconds - self._step_seconds)
        if step.fallback is None:
            # A step costs the same with and without drafts, so tokens per step are the gain.
            self._gain.record(1, len(step.token_ids), 1.0, 1.0)

    def _load(self) -> Load:
        rows = len(self._running) * (1 + self._limits.max_draft_tokens)
        return Load(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_utilization=self._kv_utilization(),
            step_seconds=self._step_seconds,
            num_rows=rows,
            estimated_gain=max(self._gain.gain, 1.0),
        )

    def _kv_utilization(self) -> float:
        # An estimate: the package tells of its blocks only in statistics that slow it down.
        limits = self._limits
        capacity = limits.max_kv_tokens or limits.max_running * limits.context_length
        per_step = 1 + limits.max_draft_tokens
        held = sum(len(self._runs[each].sequence.token_ids) + per_step for each in self._running)
        return min(held / capacity, 1.0)

    def _finish(self, run: SequenceRun, reason: FinishReason) -> None:
        if run.sequence_id in self._runs:
            self.outputs.add(SequenceStep(run.sequence_id, (), finish_reason=reason))
            self._forget(run)

    def _fail(self, run: SequenceRun, error: PacelineError) -> None:
        if run.sequence_id in self._runs:
            self.outputs.add(SequenceFailure(run.sequence_id, error))
            self._forget(run)

    def _forget(self, run: SequenceRun) -> None:
        del self._runs[run.sequence_id]
        self._sessions.finished(run)
        if run.expiry is not None:
            run.expiry.cancel()
        if run in self._waiting:
            self._waiting.remove(run)
        task = run.task
        self._release(run)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _release(self, run: SequenceRun) -> None:
        """Stop what the package still does for a run and give its place to the next."""
        if run.handle is not None:
            self._by_client.pop(run.handle.request_id, None)
            self.worker.post(Forget(run.handle.request_id))
            if not getattr(run.handle, "finished", False):
                run.handle.abort()
        run.handle = None
        run.task = None
        self._running.discard(run.sequence_id)
        self._start_waiting()


def _num_settled(emitted: list[int], path: list[int]) -> int:
    """Tokens up to and including the first that leaves the path."""
    for index, (token_id, drafted) in enumerate(zip(emitted, path, strict=False)):
        if token_id != drafted:
            return index + 1
    return min(len(emitted), len(path) + 1)
