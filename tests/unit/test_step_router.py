"""When an engine counts as stuck: it has work, and nothing has been heard of it for too long."""

from __future__ import annotations

import pytest

from verify_service.engine.sampling import FinishReason
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.steps import Command, Load, SequenceFailure, SequenceStep, StepOutput
from verify_service.step_router import StepRouter

TIMEOUT = 10.0


class Unread:
    """An outbox that nobody reads."""

    def put_step(self, step: SequenceStep) -> None:
        """Drop it."""

    def put_failure(self, failure: SequenceFailure) -> None:
        """Drop it."""

    def flush(self, load: Load) -> None:
        """Do nothing."""


class Line:
    """A router whose time and engine a test plays."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[Command] = []
        self.outbox = Unread()
        self.router = StepRouter(
            self.sent.append, {}, step_timeout_seconds=TIMEOUT, clock=lambda: self.now
        )

    def submit(self, sequence_id: int, *, lockstep: bool = False) -> None:
        """Start a sequence."""
        self.router.submit(Request(sequence_id, (1,), lockstep=lockstep), Drafting(), self.outbox)

    def step(self, *ended: int) -> None:
        """Deliver a step that ends some sequences."""
        steps = [SequenceStep(each, (5,), finish_reason=FinishReason.STOP) for each in ended]
        self.router.deliver(StepOutput(steps=tuple(steps)))


@pytest.fixture
def line() -> Line:
    """A router without sequences."""
    return Line()


def test_an_engine_without_work_is_never_stuck(line: Line) -> None:
    line.now += 1000
    line.submit(1)
    line.step(1)
    line.now += 1000

    assert not line.router.is_stuck


def test_an_engine_that_never_answers_is_stuck_from_the_first_request_on(line: Line) -> None:
    line.submit(1)
    line.now += TIMEOUT - 1
    line.submit(2)
    assert not line.router.is_stuck

    line.now += 2
    assert line.router.is_stuck


def test_every_output_is_a_sign_of_life(line: Line) -> None:
    line.submit(1)
    for _ in range(5):
        line.now += TIMEOUT - 1
        line.step()
    assert not line.router.is_stuck

    line.now += TIMEOUT + 1
    assert line.router.is_stuck


def test_it_stays_stuck_when_all_have_left_until_it_goes_on(line: Line) -> None:
    """Or gateways would come back to it at once, for it looks idle."""
    line.submit(1)
    line.now += TIMEOUT + 1
    line.router.detach(line.outbox)
    assert line.router.num_sequences == 0
    assert line.router.is_stuck

    line.step()
    assert not line.router.is_stuck
    line.now += 1000
    assert not line.router.is_stuck


def test_sequences_that_wait_for_their_client_say_nothing_about_the_engine(
    line: Line,
) -> None:
    line.submit(1, lockstep=True)
    line.now += 1000

    assert not line.router.is_stuck
