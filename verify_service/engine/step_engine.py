"""
The engine's crank: schedule, forward, accept, commit. Single-threaded; it knows no transport.

``apply`` takes commands between steps; ``step`` does one step and says all that came of it. What
the next launch does not need of a step (block keys, calibration, costs) waits until that launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from paceline.errors import EngineFailed, Overloaded, PacelineError
from verify_service.engine import completion, draft_budget, draft_selection
from verify_service.engine.block_manager import BlockManager
from verify_service.engine.cost_table import CostTable
from verify_service.engine.draft_pools import DraftPools
from verify_service.engine.draft_selection import BudgetMode, Selected
from verify_service.engine.draft_tally import DraftTally, Fate
from verify_service.engine.goodput import GainMeter
from verify_service.engine.sampling import FinishReason, Rule
from verify_service.engine.scheduler import Limits, Scheduler, Turn
from verify_service.engine.sequence import Sequence
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
    StepOutput,
    Submit,
    TreeFact,
)
from verify_service.engine.verification import Pass, Verification
from verify_service.targets.target import TargetModel

ResultT = TypeVar("ResultT")

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's fixed limits."""

    num_blocks: int = 256
    block_size: int = 16
    max_running: int = 16
    max_waiting: int = 256
    max_prefill_rows: int = 128
    max_draft_tokens: int = 24
    """Most nodes per sequence and step."""
    max_trie_nodes: int = 256
    max_draft_wait_seconds: float = 0.008
    budget: BudgetMode = BudgetMode.ADAPTIVE
    prefix_caching: bool = True
    draft_pools: tuple[str, ...] = ()


class StepEngine:
    """One target model and the sequences that it serves."""

    def __init__(
        self,
        target: TargetModel,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.config = config
        capacity = config.num_blocks * config.block_size
        self.info = replace(target.info, context_length=min(target.info.context_length, capacity))
        self.blocks = BlockManager(
            config.num_blocks, config.block_size, prefix_caching=config.prefix_caching
        )
        self.scheduler = Scheduler(
            Limits(config.max_running, config.max_waiting, config.max_prefill_rows), self.blocks
        )
        self.pools = DraftPools(config.draft_pools)
        self.costs = CostTable(config.max_running * (1 + config.max_draft_tokens))
        self.gain = GainMeter()
        self.tally = DraftTally()
        self.load = Load()
        self.beside: Callable[[], None] | None = None
        """Called while a device computes, if the target has one; may apply what can be early."""
        self.runs_apart = False
        """Whether the target's passes, as far as is known, leave the host time beside them."""
        self._is_in_flight = False
        self._later: list[Callable[[], None]] = []
        self._clock = clock
        self._sequences: dict[int, Sequence] = {}
        self._steps: list[SequenceStep] = []
        self._failures: list[SequenceFailure] = []
        target.allocate_kv(config.num_blocks, config.block_size)
        draft_budget.prepare()

    @property
    def num_sequences(self) -> int:
        """Sequences waiting or running."""
        return len(self._sequences)

    def has_work(self) -> bool:
        """Return whether a step would do or tell anything."""
        runnable = any(
            not sequence.request.lockstep
            or sequence.pending_verdicts > 0
            or sequence.num_pending_rows > 1
            for sequence in self.scheduler.running
        )
        told = self.scheduler.waiting or self._steps or self._failures
        return runnable or bool(told) or bool(self._expired(self._clock()))

    def apply(self, command: Command) -> None:
        """Take one command; what comes of it is told by the next step."""
        match command:
            case Submit():
                self._submit(command)
            case PoolUp(pool):
                self._set_pool(command)
                log.info("draft_pool_up", pool=pool)
            case PoolDown(pool, cause):
                self._set_pool(command)
                log.warning("draft_pool_down", pool=pool, cause=cause.name)
            case _:
                sequence = self._sequences.get(command.sequence_id)
                if sequence is not None:
                    self._apply_to(sequence, command)
                elif isinstance(command, TreeFact):
                    self.tally.met(command.pool, Fate.ENDED)

    def can_take_early(self, command: Command) -> bool:
        """Return whether a command may be applied while a pass is under way."""
        if not isinstance(command, TreeFact) or not command.pool:
            return False
        sequence = self._sequences.get(command.sequence_id)
        # REJECTION looks at the trie while it walks.
        return sequence is None or sequence.request.sampling.rule is Rule.SAMPLE_AND_MATCH

    def settle(self) -> None:
        """Do what earlier steps put off."""
        later, self._later = self._later, []
        for task in later:
            task()
        self.blocks.settle()

    def step(self) -> StepOutput:
        """Do one step and return everything that it and the commands before it tell."""
        started = self._clock()
        self._expire(started)
        turns = self.scheduler.schedule()
        for turn in turns:
            if turn.sequence.first_scheduled is None:
                turn.sequence.first_scheduled = started
            self.pools.sync(turn.sequence)
        if turns:
            self._run(turns, started)
        else:
            self.settle()
        return self._take_output()

    def take_news(self) -> StepOutput | None:
        """Return what cannot wait for the next step's end, sessions to be opened; None: nothing."""
        return self._take_output() if self.pools.has_opened else None

    def draft_wait_seconds(self) -> float:
        """Return how long the next step may wait for trees that are on their way."""
        return draft_selection.draft_wait_seconds(
            self.scheduler.running, self.costs, self.config.max_draft_wait_seconds
        )

    def fail_all(self, error: PacelineError) -> StepOutput:
        """End every sequence with ``error``; for faults that leave the state in doubt."""
        for sequence in list(self._sequences.values()):
            self._fail(sequence, error)
        return self._take_output()

    def forget_cached_prefixes(self) -> None:
        """Drop every cached prefix that no sequence holds."""
        self.blocks.forget_cached()

    def check_integrity(self) -> None:
        """Raise ``EngineFailed`` unless the KV blocks are accounted for."""
        self.blocks.check_integrity([sequence.block_table for sequence in self.scheduler])

    def _submit(self, command: Submit) -> None:
        request = command.request
        sequence = Sequence(request, command.drafting, self._clock(), self.config.max_trie_nodes)
        self._sequences[request.sequence_id] = sequence
        self.scheduler.add(sequence)
        room = sequence.max_new_tokens(self.info.context_length)
        starting = max(self.config.max_running - len(self.scheduler.running), 0)
        if len(self.scheduler.waiting) > self.config.max_waiting + starting:
            self._fail(
                sequence,
                Overloaded(
                    f"{self.config.max_waiting} requests are waiting already",
                    retry_after_seconds=1.0,
                ),
            )
        elif room <= 0:
            self._finish(sequence, FinishReason.LENGTH)

    def _apply_to(self, sequence: Sequence, command: Command) -> None:
        match command:
            case CancelSequence():
                self._finish(sequence, FinishReason.CANCELLED)
            case ChangeDrafting(_, drafting):
                if drafting.pool != sequence.drafting.pool:
                    sequence.trie.clear()
                sequence.drafting = drafting
                self.pools.sync(sequence)
            case TreeFact():
                outcome = draft_selection.merge_fact(
                    sequence, command, is_in_time=not self._is_in_flight
                )
                self.tally.merged(command.pool, outcome)
            case SessionLost(pool, _):
                self.pools.reopen(sequence, pool)
            case SessionRefused(pool, _, cause):
                if sequence.session_pool == pool:
                    self.pools.refuse(sequence, cause)
            case _:
                raise EngineFailed(f"unknown command {type(command).__name__}")

    def _set_pool(self, command: PoolUp | PoolDown) -> None:
        self.pools.set_cause(command.pool, getattr(command, "cause", None))
        for sequence in self._sequences.values():
            if sequence.session_pool == command.pool:
                sequence.session_pool = ""
            self.pools.sync(sequence)

    def _run(self, turns: list[Turn], started: float) -> None:
        selected = draft_selection.select(
            turns, self.costs, self.blocks, self._limits_of, self.info.context_length
        )
        self.tally.num_nodes_without_blocks += sum(each.num_without_blocks for each in selected)
        launched = self._guarded(partial(Pass, self.target, selected, self.info), turns)
        if launched is None:
            return
        self._work_beside(launched)
        verifications = self._guarded(launched.collect, turns)
        if verifications is None:
            return
        tokens = sum(self._commit(verification) for verification in verifications)
        self._measure(selected, tokens, self._clock() - started)

    def _guarded(self, compute: Callable[[], ResultT], turns: list[Turn]) -> ResultT | None:
        """Return what the target computes; None: it failed, and so did the sequences."""
        try:
            return compute()
        except Exception as error:
            log.exception("forward_failed", num_sequences=len(turns))
            for turn in turns:
                self._fail(turn.sequence, EngineFailed(f"the forward pass failed: {error}"))
            return None

    def _work_beside(self, launched: Pass) -> None:
        """Do between launch and result what neither needs."""
        self.runs_apart = launched.is_apart
        if self.runs_apart and self.beside is not None:
            self._is_in_flight = True
            try:
                self.beside()
            finally:
                self._is_in_flight = False
        self.settle()

    def _limits_of(self, sequence: Sequence) -> tuple[BudgetMode, int]:
        own = sequence.drafting.max_draft_tokens or self.config.max_draft_tokens
        return self.config.budget, min(own, self.config.max_draft_tokens)

    def _commit(self, verification: Verification) -> int:
        """Commit what one verification emitted and return the number of tokens."""
        sequence = verification.sequence
        if verification.error is not None:
            self._fail(sequence, verification.error)
            return 0
        if not verification.emits:
            sequence.num_stored += verification.num_rows
            self._publish(sequence)
            return 0
        step = completion.emit(
            verification, self.info.context_length, self.pools.cause_for(sequence)
        )
        base_len = len(sequence.token_ids)
        sequence.token_ids.extend(step.token_ids)
        sequence.num_stored = len(sequence.token_ids) - 1
        sequence.has_emitted = True
        sequence.pending_verdicts = max(sequence.pending_verdicts - 1, 0)
        observations = draft_selection.learn(sequence, step)
        if sequence.calibration is not None and observations:
            self._later.append(partial(sequence.calibration.record, observations))
        self._steps.append(step)
        self.target.move_kv(*verification.moves(len(step.token_ids), self.blocks.block_size))
        self.blocks.shrink(sequence.block_table, len(sequence.token_ids))
        self._publish(sequence)
        if step.finish_reason is None:
            self.pools.committed(sequence, base_len, step.token_ids)
        else:
            self._forget(sequence)
        return len(step.token_ids)

    def _publish(self, sequence: Sequence) -> None:
        num_full = sequence.num_stored // self.blocks.block_size
        if num_full > sequence.num_published_blocks:
            self.blocks.publish_later(
                sequence.block_table, sequence.token_ids, sequence.num_stored, sequence.salt
            )
            sequence.num_published_blocks = num_full

    def _expire(self, now: float) -> None:
        for sequence in self._expired(now):
            self._finish(sequence, FinishReason.DEADLINE)

    def _expired(self, now: float) -> list[Sequence]:
        return [
            sequence
            for sequence in self._sequences.values()
            if sequence.request.deadline is not None and sequence.request.deadline <= now
        ]

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._steps.append(SequenceStep(sequence.sequence_id, (), finish_reason=reason))
        self._forget(sequence)

    def _fail(self, sequence: Sequence, error: PacelineError) -> None:
        self._failures.append(SequenceFailure(sequence.sequence_id, error))
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.sequence_id]
        self.scheduler.remove(sequence)
        self.pools.finished(sequence)

    def _measure(self, selected: list[Selected], num_tokens: int, seconds: float) -> None:
        num_rows = sum(each.num_rows for each in selected)
        context = sum(each.turn.sequence.num_stored for each in selected)
        if all(each.turn.is_decode for each in selected):
            self._later.append(partial(self.costs.record, num_rows, context, seconds))
            if any(each.tree.num_nodes for each in selected):
                count = len(selected)
                self._later.append(partial(self._compare, count, num_tokens, context, seconds))
        self.load = Load(step_seconds=seconds, num_rows=num_rows)

    def _compare(self, num_sequences: int, num_tokens: int, context: int, seconds: float) -> None:
        """Compare a step with drafts to what a plain one would have cost."""
        plain = self.costs.seconds(num_sequences, context)
        self.gain.record(num_sequences, num_tokens, seconds, plain)

    def _take_output(self) -> StepOutput:
        load = Load(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            kv_utilization=self.blocks.num_in_use / self.blocks.num_blocks,
            step_seconds=self.load.step_seconds,
            num_rows=self.load.num_rows,
            estimated_gain=self.gain.gain,
        )
        output = StepOutput(
            tuple(self._steps), tuple(self._failures), self.pools.take_events(), load
        )
        self._steps.clear()
        self._failures.clear()
        return output
