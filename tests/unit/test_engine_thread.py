"""The thread that turns the crank: nobody waits for ever, whatever fails on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from paceline.errors import EngineFailed, Overloaded
from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL
from tests.doubles.small_engine import MARKOV, VOCAB, ids, request, run, small_engine
from verify_service.engine import engine_thread
from verify_service.engine.engine_thread import EngineThread
from verify_service.engine.sequence import Drafting
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import (
    CancelSequence,
    Command,
    PoolUp,
    SequenceFailure,
    SessionOpened,
    StepOutput,
    Submit,
    TreeFact,
)
from verify_service.targets.table import TableTarget


class Outputs:
    """Everything that the thread told, and a way to wait for it."""

    def __init__(self) -> None:
        self.thread: EngineThread | None = None
        self.token_ids: dict[int, list[int]] = {}
        self.ended: dict[int, SequenceFailure | None] = {}
        self.opened = threading.Event()
        """Some drafter was told to open a session."""
        self._changed = threading.Condition()

    def take(self, output: StepOutput) -> None:
        """Take one output, as the service does."""
        if self.thread is not None:
            self.thread.output_read()
        if any(isinstance(event, SessionOpened) for event in output.session_events):
            self.opened.set()
        with self._changed:
            for step in output.steps:
                self.token_ids.setdefault(step.sequence_id, []).extend(step.token_ids)
                if step.finish_reason is not None:
                    self.ended[step.sequence_id] = None
            for failure in output.failures:
                self.ended[failure.sequence_id] = failure
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], timeout_seconds: float = 2.0) -> None:
        """Wait until a condition holds."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_seconds)


class BrokenEngine(StepEngine):
    """Fails where a fault of ours would: at a cancel, or when it checks itself."""

    fails_on_cancel = False
    fails_when_idle = False

    def apply(self, command: Command) -> None:
        """Apply, unless told to fail."""
        if self.fails_on_cancel and isinstance(command, CancelSequence):
            self.fails_on_cancel = False
            raise KeyError("a fault of ours")
        super().apply(command)

    def check_integrity(self) -> None:
        """Check, unless told to fail."""
        if self.fails_when_idle:
            self.fails_when_idle = False
            raise EngineFailed("a block is missing")
        super().check_integrity()


class PoolWatch(StepEngine):
    """Notes whether drafters knew of their sessions when the next step after ``PoolUp`` began."""

    def __init__(self, outputs: Outputs) -> None:
        target = TableTarget(MARKOV, vocab_size=VOCAB, context_length=128)
        super().__init__(target, small_engine().config)
        self.knew: list[bool] = []
        self.may_go_on = threading.Event()
        self._outputs = outputs
        self._is_back = False

    def apply(self, command: Command) -> None:
        """Apply, and note that the pool is back."""
        super().apply(command)
        self._is_back = self._is_back or isinstance(command, PoolUp)

    def step(self) -> StepOutput:
        """Do one step; once tokens are out, wait for the test."""
        if self._outputs.token_ids:
            assert self.may_go_on.wait(2.0)
        if self._is_back:
            self._is_back = False
            self.knew.append(self._outputs.opened.is_set())
        return super().step()


class PatientEngine(StepEngine):
    """Waits for trees before every step; notes whether put-off work was done by then."""

    def __init__(self, seconds: float) -> None:
        target = TableTarget(MARKOV, vocab_size=VOCAB, context_length=128)
        super().__init__(target, small_engine().config)
        self.settled: list[bool] = []
        self._seconds = seconds
        self._has_settled = False

    def draft_wait_seconds(self) -> float:
        """Expect trees that never come."""
        return self._seconds

    def settle(self) -> None:
        """Do what was put off, and note it."""
        super().settle()
        self._has_settled = True

    def step(self) -> StepOutput:
        """Do one step."""
        self.settled.append(self._has_settled)
        self._has_settled = False
        output = super().step()
        self._has_settled = False
        return output


def _broken_engine() -> BrokenEngine:
    config = small_engine().config
    return BrokenEngine(TableTarget(MARKOV, vocab_size=VOCAB, context_length=128), config)


@contextmanager
def _running(
    engine: StepEngine, outputs: Outputs | None = None
) -> Iterator[tuple[EngineThread, Outputs]]:
    outputs = outputs or Outputs()
    thread = outputs.thread = EngineThread(engine)
    thread.start(outputs.take)
    try:
        yield thread, outputs
    finally:
        thread.stop()


def test_commands_go_in_and_outputs_come_out() -> None:
    expected = ids(run([request(i) for i in (1, 2)], small_engine()))
    with _running(small_engine()) as (thread, outputs):
        for i in (1, 2):
            thread.send(Submit(request(i)))
        outputs.wait(lambda: outputs.ended.keys() == {1, 2})

    assert outputs.token_ids == expected


def test_fault_in_a_command_ends_those_who_run_and_the_thread_goes_on() -> None:
    """B072: an exception on the engine's thread reaches every waiting client within 2 seconds."""
    engine = _broken_engine()
    engine.fails_on_cancel = True
    with _running(engine) as (thread, outputs):
        thread.send(Submit(request(1, lockstep=True)))
        thread.send(CancelSequence(1))
        outputs.wait(lambda: 1 in outputs.ended)
        thread.send(Submit(request(2)))
        outputs.wait(lambda: 2 in outputs.ended)

    failure = outputs.ended[1]
    assert failure is not None
    assert isinstance(failure.error, EngineFailed)
    assert outputs.ended[2] is None


def test_fault_found_while_idle_does_not_end_the_thread() -> None:
    engine = _broken_engine()
    engine.fails_when_idle = True
    with _running(engine) as (thread, outputs):
        outputs.wait(lambda: not engine.fails_when_idle or bool(outputs.ended), 0.5)
        thread.send(Submit(request(1)))
        outputs.wait(lambda: 1 in outputs.ended)

    assert outputs.ended[1] is None


def test_sessions_at_a_pool_that_is_back_are_opened_before_the_next_step() -> None:
    """Its drafter works during that step, and not only after it."""
    outputs = Outputs()
    engine = PoolWatch(outputs)
    with _running(engine, outputs) as (thread, _):
        thread.send(Submit(request(1, max_tokens=100), Drafting(POOL)))
        outputs.wait(lambda: bool(outputs.token_ids))
        thread.send(PoolUp(POOL))
        engine.may_go_on.set()
        outputs.wait(lambda: 1 in outputs.ended)

    assert engine.knew == [True]


@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_put_off_work_is_done_while_trees_are_waited_for(seconds: float) -> None:
    engine = PatientEngine(seconds)
    with _running(engine) as (thread, outputs):
        thread.send(Submit(request(1, max_tokens=4)))
        outputs.wait(lambda: 1 in outputs.ended)

    after_idling, *others = engine.settled
    assert after_idling
    assert others == [seconds > 0.0] * 3


def test_full_inbox_drops_trees_and_refuses_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_thread, "MAX_INBOX", 1)
    thread = EngineThread(small_engine())
    thread.send(CancelSequence(1))

    thread.send(TreeFact(1, 3, TokenTree()))
    with pytest.raises(Overloaded) as caught:
        thread.send(CancelSequence(2))

    assert caught.value.retry_after_seconds


def test_engine_pauses_while_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are bounded: a stuck event loop stops the engine, not the machine."""
    monkeypatch.setattr(engine_thread, "MAX_UNREAD_OUTPUTS", 3)
    outputs = Outputs()
    thread = EngineThread(small_engine())
    thread.start(outputs.take)
    try:
        thread.send(Submit(request(1)))
        outputs.wait(lambda: len(outputs.token_ids.get(1, [])) == 3)
        with pytest.raises(AssertionError):
            outputs.wait(lambda: len(outputs.token_ids[1]) > 3, 0.3)
        for _ in range(20):
            thread.output_read()
        outputs.wait(lambda: 1 in outputs.ended)
    finally:
        thread.stop()


def test_stop_ends_the_thread_even_if_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_thread, "MAX_UNREAD_OUTPUTS", 1)
    outputs = Outputs()
    thread = EngineThread(small_engine())
    thread.start(outputs.take)
    thread.send(Submit(request(1)))
    outputs.wait(lambda: 1 in outputs.token_ids)

    thread.stop()

    assert not any(each.name == "engine" for each in threading.enumerate())
