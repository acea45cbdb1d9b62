"""
The tiny model served under each setting of the budget, and the record of what its steps cost.

Real passes and verdicts, in virtual time: a step takes what the record says of its rows, so that
settings compare to the digit on a machine that does other work too. The drafter agrees with the
model as often as ``bench.simulated_drafter`` says: the model's own answers are the truth that it
hits or misses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from bench.budget_settings import CONCURRENCIES, FIXED_SIZES, MAX_NODES, OFF, Measure, Setting
from bench.demo_line import TINY_MODEL
from bench.engine_run import DRAFTED, PLAIN, POOL, EngineRun
from bench.option_cases import VOCAB
from bench.simulated_drafter import SimulatedDrafter, TreeShape
from bench.virtual_line import workload_of
from paceline.noise import mix64
from paceline.tree import TokenTree
from verify_service.engine.cost_table import CostTable
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import TokenLimits
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import CancelSequence
from verify_service.settings import VerifySettings
from verify_service.targets.registry import load_target
from verify_service.targets.simulated import TokenStream, VirtualClock, work_of
from verify_service.targets.target import FlatBatch, TargetModel
from verify_service.warm_up import warm_up

NUM_REQUESTS, TOKENS_EACH = 48, 96
PROMPT_TOKENS: Final = 32
SETTLING_TOKENS, MEASURED_TOKENS = 96, 480
"""For one stream; more streams emit in proportion to the root of their number."""

RECORDED_PROMPT: Final = tuple(range(1, 257))
RECORDED_TOKENS: Final = 12


def recorded_costs() -> CostTable:
    """Return what the model's steps cost this machine's CPU, as its engine learns it."""
    engine = _engine(_tiny_target(), Setting(BudgetMode.FIXED, MAX_NODES), time.thread_time)
    warm_up(engine)
    # The least of several is kept: disturbances only ever add to a cost.
    with engine.costs.seeding():
        for num_streams in CONCURRENCIES:
            for size in (0, *FIXED_SIZES):
                _record(engine, num_streams, size)
    return engine.costs


def _record(engine: StepEngine, num_streams: int, size: int) -> None:
    """Do some steps of ``num_streams`` sequences with ``size`` unlikely nodes each."""

    def propose(_: int, committed: Sequence[int]) -> TokenTree:
        token_ids = tuple((len(committed) * 7919 + node) % VOCAB for node in range(size))
        return TokenTree(token_ids, (0,) * size)

    EngineRun(engine, propose).finish(
        Request(sequence_id, RECORDED_PROMPT, limits=TokenLimits(RECORDED_TOKENS))
        for sequence_id in range(1, num_streams + 1)
    )


class ServedTinyModel:
    """Serves the same requests under any setting, each on an engine of its own."""

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._clock = VirtualClock()
        self._engines: dict[Setting, StepEngine] = {}
        numbers = range(1, NUM_REQUESTS + 1)
        answers = EngineRun(self._engine(OFF)).finish(map(_request, numbers))
        self._truths = {
            number: _Truth((*_prompt(number), *answer.token_ids))
            for number, answer in zip(numbers, answers, strict=True)
        }

    def measure(self, num_streams: int) -> Measure:
        """Return the function that measures settings with this many streams."""
        return lambda settings: [self._goodput(num_streams, setting) for setting in settings]

    def _goodput(self, num_streams: int, setting: Setting) -> float:
        drafters = {
            number: SimulatedDrafter(truth, shape=TreeShape(max_nodes=setting.max_nodes))
            for number, truth in self._truths.items()
        }

        def propose(number: int, committed: Sequence[int]) -> TokenTree:
            return drafters[number].propose(workload_of(number), number, committed)

        run = EngineRun(self._engine(setting), propose)
        served = _ServedStreams(run, num_streams, DRAFTED if setting.is_drafted else PLAIN)
        scale = num_streams**0.5
        served.emit(round(SETTLING_TOKENS * scale))
        begun = self._clock()
        num_tokens = served.emit(round(MEASURED_TOKENS * scale))
        seconds = self._clock() - begun
        served.stop()
        return num_tokens / seconds

    def _engine(self, setting: Setting) -> StepEngine:
        engine = self._engines.get(setting)
        if engine is None:
            target = _TimedTarget(_tiny_target(), self._costs, self._clock)
            engine = self._engines[setting] = _engine(target, setting, self._clock)
            engine.costs.restore(self._costs.records())
        return engine


class _TimedTarget:
    """A target whose passes take the time that a table says, on a virtual clock."""

    def __init__(self, target: TargetModel, costs: CostTable, clock: VirtualClock) -> None:
        self._target = target
        self._costs = costs
        self._clock = clock
        self.info = target.info
        self.allocate_kv = target.allocate_kv
        self.move_kv = target.move_kv

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Do the pass and let its time pass."""
        work = work_of(batch)
        self._clock.sleep(self._costs.seconds(work.num_rows, work.num_context_tokens))
        return self._target.forward(batch)


class _ServedStreams:
    """A fixed number of streams: whoever ends is replaced at once."""

    def __init__(self, run: EngineRun, num_streams: int, drafting: Drafting) -> None:
        self._run = run
        self._num_streams = num_streams
        self._drafting = drafting
        self._num_started = 0

    def emit(self, num_tokens: int) -> int:
        """Step until as many tokens were emitted, or a few more, and return how many."""
        emitted = 0
        while emitted < num_tokens:
            while self._run.engine.num_sequences < self._num_streams:
                self._start()
            emitted += sum(len(step.token_ids) for step in self._run.step().steps)
        return emitted

    def stop(self) -> None:
        """Leave the engine without streams."""
        for number in self._run.answers:
            self._run.engine.apply(CancelSequence(number))
        self._run.engine.step()

    def _start(self) -> None:
        number = 1 + self._num_started % NUM_REQUESTS
        self._num_started += 1
        self._run.submit(_request(number), self._drafting)


class _Truth(TokenStream):
    """An answer that is known already: what follows depends on the position alone."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        super().__init__(VOCAB)
        self._token_ids = token_ids

    def after(self, token_id: int, position: int) -> int:
        """Return what follows index ``position``; beyond the end anything may."""
        following = position + 1
        return self._token_ids[following] if following < len(self._token_ids) else token_id


def _tiny_target() -> TargetModel:
    return load_target(VerifySettings(model=TINY_MODEL, num_threads=1))


def _engine(target: TargetModel, setting: Setting, clock: Callable[[], float]) -> StepEngine:
    config = EngineConfig(
        num_blocks=1024,
        max_running=max(CONCURRENCIES),
        max_draft_tokens=setting.max_nodes,
        budget=setting.budget,
        draft_pools=(POOL,),
    )
    return StepEngine(target, config, clock=clock)


def _request(number: int) -> Request:
    return Request(number, _prompt(number), limits=TokenLimits(TOKENS_EACH))


def _prompt(number: int) -> tuple[int, ...]:
    return tuple(3 + mix64(number * 1009 + index) % (VOCAB - 3) for index in range(PROMPT_TOKENS))
