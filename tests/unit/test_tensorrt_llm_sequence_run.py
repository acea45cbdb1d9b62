"""From the package's cumulative outputs to what is published."""

from __future__ import annotations

from dataclasses import dataclass, field

from verify_service.engine.sampling import FinishReason, TokenLimits
from verify_service.engine.sequence import Drafting, Request, Sequence
from verify_service.engines.tensorrt_llm.sequence_run import SequenceRun

PROMPT = (1, 2, 3)


@dataclass
class Output:
    """A cumulative output."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def make_run(*, max_tokens: int = 10, stops: frozenset[int] = frozenset()) -> SequenceRun:
    request = Request(1, PROMPT, limits=TokenLimits(max_tokens, stop_token_ids=stops))
    return SequenceRun(Sequence(request, Drafting(), 0.0, 0), context_length=64)


def test_deltas_follow_from_the_cumulative_length() -> None:
    run = make_run()

    first = run.step(run.take(Output([7])), None, None)
    second = run.step(run.take(Output([7, 8, 9])), None, None)

    assert (first.token_ids, first.is_prefill, first.num_accepted) == ((7,), True, 0)
    assert (second.token_ids, second.is_prefill, second.num_accepted) == ((8, 9), False, 1)
    assert run.sequence.token_ids == [*PROMPT, 7, 8, 9]


def test_accepted_padding_is_not_reported_as_drafted() -> None:
    """The target drew the padding token itself: three tokens, of which one was drafted."""
    run = make_run()
    run.step(run.take(Output([7])), None, None)
    run.placed(4, 1)

    step = run.step(run.take(Output([7, 8, 0, 0])), None, None)

    assert (step.num_drafted, step.num_accepted) == (1, 1)


def test_without_a_report_what_was_accepted_was_drafted() -> None:
    run = make_run()
    run.step(run.take(Output([7])), None, None)

    step = run.step(run.take(Output([7, 8, 9])), None, None)

    assert (step.num_drafted, step.num_accepted) == (1, 1)


def test_a_stop_token_cuts_what_follows_it() -> None:
    run = make_run(stops=frozenset({8}))

    step = run.step(run.take(Output([7, 8, 9])), None, None)

    assert step.token_ids == (7, 8)
    assert (step.finish_reason, step.matched_stop_token_id) == (FinishReason.STOP, 8)


def test_a_stop_token_that_the_package_swallowed_is_put_back() -> None:
    run = make_run(stops=frozenset({8}))

    step = run.step(run.take(Output([7], "stop", 8)), "stop", None)

    assert step.token_ids == (7, 8)
    assert (step.finish_reason, step.matched_stop_token_id) == (FinishReason.STOP, 8)


def test_the_limit_cuts_what_exceeds_it() -> None:
    run = make_run(max_tokens=2)

    step = run.step(run.take(Output([7, 8, 9])), None, None)

    assert (step.token_ids, step.finish_reason) == ((7, 8), FinishReason.LENGTH)


def test_a_reason_of_the_packages_own_ends_the_run() -> None:
    run = make_run()

    step = run.step(run.take(Output([7], "timeout")), "timeout", None)

    assert step.finish_reason is FinishReason.DEADLINE
    assert run.finished


def test_an_unknown_reason_is_an_error() -> None:
    run = make_run()

    assert run.step((7,), "melted", None).finish_reason is FinishReason.ERROR
