"""Host work between the launch of a pass and the first look at its results, as on a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL
from tests.doubles.small_engine import (
    CONFIG,
    MARKOV,
    VOCAB,
    Clock,
    guesses,
    ids,
    request,
    run,
    small_engine,
)
from verify_service.engine import verification
from verify_service.engine.engine_thread import EngineThread
from verify_service.engine.row_choices import DrawnChoices
from verify_service.engine.sampling import Rule, SamplingParams
from verify_service.engine.sequence import Drafting
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import PoolUp, StepOutput, Submit, TreeFact
from verify_service.targets.table import TableTarget
from verify_service.targets.target import FlatBatch


class LateTarget(TableTarget):
    """Leaves its logits empty until the device is done."""

    def __init__(self) -> None:
        super().__init__(MARKOV, vocab_size=VOCAB, context_length=128)
        self.events: list[str] = []
        self._logits = torch.empty(0)
        self._coming = torch.empty(0)

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Launch."""
        self.events.append("launched")
        self._coming = super().forward(batch)
        self._logits = torch.full_like(self._coming, torch.nan)
        return self._logits

    @torch.inference_mode()
    def finish(self) -> None:
        """Be done."""
        self._logits.copy_(self._coming)


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have results looked at no sooner than a device would give them."""
    monkeypatch.setattr(verification.Pass, "is_apart", True)
    monkeypatch.setattr(verification, "choose_all", lambda logits, selected: None)


def late_engine() -> tuple[StepEngine, LateTarget]:
    target = LateTarget()
    return StepEngine(target, CONFIG, clock=Clock()), target


def test_nothing_reads_the_results_before_the_work_beside_is_done() -> None:
    engine, target = late_engine()
    engine.beside = target.finish
    requests = [request(1), request(2, sampling=SamplingParams(0.8, top_p=0.9, seed=5))]

    assert ids(run(requests, engine, guesses)) == ids(run(requests, small_engine(), guesses))


def drafting_engine(params: SamplingParams | None = None) -> tuple[StepEngine, int]:
    """Return an engine whose sequence 1 drafts, and the sequence's committed length."""
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    asked = request(1, sampling=params or SamplingParams())
    engine.apply(Submit(asked, Drafting(POOL)))
    return engine, len(asked.prompt_token_ids) + len(engine.step().steps[0].token_ids)


def test_a_tree_that_comes_during_a_pass_is_verified_in_the_next() -> None:
    """B075: it was drawn for the length before and is re-rooted along what the pass commits."""
    text = ids(run([request(1)], small_engine()))[1]
    engine, length = drafting_engine()
    tree = TokenTree.chain(text[1:5], (0.0,) * 4)
    engine.beside = lambda: engine.apply(TreeFact(1, length, tree, POOL))
    (during,) = engine.step().steps
    engine.beside = None

    (after,) = engine.step().steps

    assert (during.num_drafted, len(during.token_ids)) == (0, 1)
    assert (after.num_drafted, after.num_accepted) == (3, 3)


def test_a_tree_that_comes_too_late_for_a_step_is_no_answer_to_wait_for() -> None:
    """What waiting for trees pays is learned from those that came before the step."""
    rates: list[float] = []
    for is_late in (False, True):
        engine, length = drafting_engine()
        fact = TreeFact(1, length, guesses([]), POOL)
        if is_late:
            engine.beside = lambda: engine.apply(fact)  # noqa: B023 called in this round
        else:
            engine.apply(fact)
        engine.step()
        rates.append(engine.scheduler.running[0].arrival_rate)

    assert rates[1] < 0.5 < rates[0]


@pytest.mark.parametrize(
    ("pool", "params", "is_taken"),
    [
        (POOL, SamplingParams(), True),
        (POOL, SamplingParams(1.0, rule=Rule.REJECTION), False),
        ("", SamplingParams(), False),
    ],
    ids=["a pool's", "for a rule that looks at the trie", "a client's own"],
)
def test_only_trees_that_nothing_under_way_looks_at_are_taken_early(
    pool: str, params: SamplingParams, is_taken: bool
) -> None:
    engine, length = drafting_engine(params)

    assert engine.can_take_early(TreeFact(1, length, TokenTree(), pool)) is is_taken
    assert not engine.can_take_early(Submit(request(2)))


def test_costs_and_hits_are_noted_beside_the_next_pass() -> None:
    engine = small_engine(clock=time.monotonic)
    engine.apply(PoolUp(POOL))
    engine.apply(Submit(request(1), Drafting(POOL)))
    num_tokens = len(request(1).prompt_token_ids) + len(engine.step().steps[0].token_ids)
    engine.apply(TreeFact(1, num_tokens, TokenTree((3, 4), (0, 0), (-0.5, -0.5)), POOL))
    engine.step()
    counts = engine.pools.pools[POOL].calibration.counts
    num_records = len(engine.costs.records())
    assert sum(counts.trials) == 0.0

    engine.settle()

    assert sum(counts.trials) == pytest.approx(2.0, abs=0.01)
    assert len(engine.costs.records()) == num_records + 1


def test_a_prefix_is_found_though_its_keys_were_put_off() -> None:
    """B051: whoever looks for a prefix finds all that was stored before."""
    engine = small_engine()
    engine.apply(Submit(request(1)))
    engine.step()
    engine.apply(Submit(request(2, prompt_token_ids=request(1).prompt_token_ids)))

    second = next(each for each in engine.step().steps if each.sequence_id == 2)

    assert second.num_cached_prompt_tokens == 4


class Line:
    """An engine's thread and the order in which passes start and outputs are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.target = late_engine()
        self.thread = EngineThread(self.engine)
        self.ended = threading.Event()
        work_beside = self.engine.beside

        def beside() -> None:
            if work_beside is not None:
                work_beside()
            self.target.finish()

        monkeypatch.setattr(self.engine, "beside", beside)

    def serve(self, drafting: Drafting) -> Sequence[str]:
        """Serve one request and return what happened."""
        self.thread.send(PoolUp(POOL))
        self.thread.send(Submit(request(1, max_tokens=6), drafting))
        self.thread.start(self._take)
        assert self.ended.wait(5.0)
        self.thread.stop()
        return self.target.events

    def _take(self, output: StepOutput) -> None:
        self.thread.output_read()
        self.target.events.append("told")
        if any(step.finish_reason for step in output.steps):
            self.ended.set()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    made = Line(monkeypatch)
    yield made
    made.thread.stop()


def test_outputs_are_told_while_the_device_computes_the_next_pass(line: Line) -> None:
    """The last one, which no pass follows, at once."""
    events = line.serve(Drafting())

    assert events == ["launched", *["launched", "told"] * 5, "told"]


def test_outputs_that_drafters_wait_for_are_told_before_the_next_pass(line: Line) -> None:
    """A step that waits for trees would wait for nothing if nobody had been told."""
    events = line.serve(Drafting(POOL))

    assert events == ["launched", "told"] * 6


class CountingConstraint:
    """Allows everything and remembers what it was asked."""

    def __init__(self) -> None:
        self.paths: list[tuple[int, ...]] = []

    def mask(self, path: Sequence[int]) -> torch.Tensor:
        self.paths.append(tuple(path))
        return torch.ones(VOCAB, dtype=torch.bool)

    def num_allowed(self, path: Sequence[int]) -> int:
        return len(path)

    def forced(self) -> tuple[int, ...]:
        return ()

    def commit(self, token_ids: Sequence[int]) -> None:
        del token_ids


@pytest.mark.parametrize("is_here", [False, True], ids=["busy", "done"])
def test_masks_below_the_root_are_asked_for_only_while_the_device_is_busy(
    monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    """And none twice: the walk takes what was asked ahead."""
    monkeypatch.setattr(verification, "choose_all", DrawnChoices)
    monkeypatch.setattr(DrawnChoices, "is_here", lambda self: is_here)
    engine = small_engine()
    constraint = CountingConstraint()
    engine.apply(PoolUp(POOL))
    engine.apply(Submit(request(1, constraint=constraint), Drafting(POOL)))
    (first,) = engine.step().steps
    length = len(request(1).prompt_token_ids) + len(first.token_ids)
    constraint.paths.clear()
    engine.apply(TreeFact(1, length, TokenTree((3, 4, 5), (0, 0, 1), (-0.1, -0.2, -0.1)), POOL))

    (step,) = engine.step().steps

    walked = [step.token_ids[:depth] for depth in range(len(step.token_ids))]
    everywhere = [(), (3,), (3, 5), (4,)]
    assert constraint.paths == (walked if is_here else everywhere)
