"""The engine at its edges: full, late, cancelled, broken numbers, a forward pass that fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from paceline.errors import DeadlineExceeded, EngineFailed, Overloaded
from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Harness, ProposeTree
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
from verify_service.engine.sampling import FinishReason, SamplingParams, TokenLimits
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import CancelSequence, TreeFact
from verify_service.targets.table import TableTarget
from verify_service.targets.target import FlatBatch


@pytest.mark.parametrize(
    ("max_running", "max_waiting", "num_served"), [(2, 3, 5), (2, 0, 2), (4, 1, 5)]
)
def test_request_beyond_the_queue_is_refused_and_the_others_are_served(
    max_running: int, max_waiting: int, num_served: int
) -> None:
    """What can run at once does not count as waiting."""
    engine = small_engine(max_running=max_running, max_waiting=max_waiting)

    emitted = run([request(i) for i in range(1, 9)], engine)

    refused = [each.error for each in emitted.values() if each.error]
    assert len(refused) == 8 - num_served
    assert all(isinstance(error, Overloaded) for error in refused)
    assert all(error.retry_after_seconds for error in refused)
    assert all(len(emitted[i].token_ids) == 20 for i in range(1, num_served + 1))


def test_time_in_the_queue_is_told_once() -> None:
    clock = Clock()
    harness = Harness(small_engine(clock=clock, max_running=1))
    harness.submit(request(1, max_tokens=2))
    harness.submit(request(2, max_tokens=3))
    while harness.engine.has_work():
        clock.now += 1.0
        harness.step()

    queued = [step.queue_seconds for step in harness.emitted[2].steps]
    assert queued[0] >= 2.0
    assert queued[1:] == [0.0, 0.0]


def test_deadline_ends_a_running_request_and_keeps_what_was_emitted() -> None:
    clock = Clock()
    harness = Harness(small_engine(clock=clock))
    harness.submit(request(1, deadline=105.0))
    for _ in range(3):
        harness.step()
    clock.now = 105.0
    harness.run()

    emitted = harness.emitted[1]
    assert emitted.finish_reason is FinishReason.DEADLINE
    assert emitted.token_ids == ids(run([request(1)], small_engine()))[1][:3]
    assert harness.engine.blocks.num_in_use == 0


def test_deadline_ends_a_waiting_request_too() -> None:
    clock = Clock()
    harness = Harness(small_engine(clock=clock, max_running=1))
    harness.submit(request(1, max_tokens=60))
    harness.submit(request(2, deadline=101.0))
    harness.step()
    clock.now = 102.0
    harness.step()

    assert harness.emitted[2].finish_reason is FinishReason.DEADLINE
    assert harness.emitted[1].finish_reason is None


def test_deadline_ends_a_session_whose_client_sends_nothing() -> None:
    """A parked sequence holds KV; nothing else would wake the engine for it."""
    clock = Clock()
    harness = Harness(small_engine(clock=clock))
    harness.submit(request(1, lockstep=True, deadline=105.0))
    harness.run()
    assert harness.engine.blocks.num_in_use > 0

    clock.now = 106.0
    harness.run()

    assert harness.emitted[1].finish_reason is FinishReason.DEADLINE
    assert harness.engine.blocks.num_in_use == 0


@pytest.mark.parametrize("num_steps", [0, 1, 2, 6])
def test_cancel_frees_the_blocks_at_any_time(num_steps: int) -> None:
    """B045: waiting, in prefill, at the first token, decoding."""
    harness = Harness(small_engine(max_prefill_rows=4), guesses)
    harness.submit(request(1, max_tokens=100))
    for _ in range(num_steps):
        harness.step()

    harness.engine.apply(CancelSequence(1))
    harness.run()

    assert harness.emitted[1].finish_reason is FinishReason.CANCELLED
    assert harness.engine.blocks.num_in_use == 0


def test_cancel_of_nobody_is_ignored() -> None:
    engine = small_engine()

    engine.apply(CancelSequence(77))
    engine.apply(TreeFact(77, 3, TokenTree.chain([1]), POOL))

    assert not engine.has_work()


def test_rejected_drafts_hold_no_blocks() -> None:
    """B045: what a tree needed is given back in the same step."""
    engine = small_engine(block_size=1)
    harness = Harness(engine, lambda _: TokenTree(tuple(range(8)), (0,) * 8))
    harness.submit(request(1))
    harness.step()
    (sequence,) = engine.scheduler.running
    while engine.has_work():
        assert len(sequence.block_table) <= len(sequence.token_ids)
        harness.step()

    assert max(step.num_drafted for step in harness.emitted[1].steps) == 8


@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_no_block_is_lost_over_many_requests(block_size: int) -> None:
    """B045, B046: 200 requests that finish, stop, are cancelled, expire or fail."""

    def sometimes_broken(tokens: tuple[int, ...]) -> Sequence[float]:
        return [math.nan] * VOCAB if tokens[0] == 3 and len(tokens) > 9 else MARKOV(tokens)

    clock = Clock()
    engine = small_engine(
        sometimes_broken, clock=clock, num_blocks=256 // block_size, block_size=block_size
    )
    harness = Harness(engine, guesses)
    for i in range(1, 201):
        deadline = clock.now + 3 if i % 5 == 0 else None
        stops = frozenset({i % VOCAB}) if i % 3 == 0 else frozenset[int]()
        limits = TokenLimits(max_tokens=1 + i % 17, stop_token_ids=stops)
        harness.submit(request(i, deadline=deadline, limits=limits))
        clock.now += 1
        harness.step()
        if i % 7 == 0:
            engine.apply(CancelSequence(i))
    harness.run()

    reasons = {each.finish_reason for each in harness.emitted.values()}
    assert reasons == {*FinishReason, None} - {FinishReason.ERROR}
    assert any(each.error for each in harness.emitted.values())
    assert engine.blocks.num_free == engine.blocks.num_blocks


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafts", [None, guesses], ids=["plain", "drafted"])
def test_one_broken_row_fails_its_sequence_and_no_other(
    broken: float, temperature: float, drafts: ProposeTree | None
) -> None:
    """B057: four sequences, the row of one becomes unusable after some tokens."""
    sampling = SamplingParams(temperature=temperature, seed=9)
    requests = [request(i, sampling=sampling) for i in range(1, 5)]
    expected = ids(run(requests, small_engine()))
    victim = requests[2].prompt_token_ids

    def logits_of(tokens: tuple[int, ...]) -> Sequence[float]:
        is_broken = tokens[:6] == victim and len(tokens) >= 11
        return [broken] * VOCAB if is_broken else MARKOV(tokens)

    emitted = run(requests, small_engine(logits_of), drafts)

    assert isinstance(emitted[3].error, EngineFailed)
    assert emitted[3].error.reason == "INVALID_LOGITS"
    assert emitted[3].token_ids == expected[3][:5]
    for i in (1, 2, 4):
        assert emitted[i].error is None
        assert emitted[i].token_ids == expected[i]


def test_broken_row_of_a_wrong_draft_harms_nobody() -> None:
    """B057: only rows on the target's own way are looked at."""
    expected = ids(run([request(1)], small_engine()))
    truth = [*request(1).prompt_token_ids, *expected[1]]

    def logits_of(tokens: tuple[int, ...]) -> Sequence[float]:
        return MARKOV(tokens) if list(tokens) == truth[: len(tokens)] else [math.nan] * VOCAB

    emitted = run([request(1)], small_engine(logits_of), guesses)

    assert emitted[1].token_ids == expected[1]
    assert sum(step.num_accepted for step in emitted[1].steps) > 0


class FailingTarget(TableTarget):
    """A table whose forward pass raises when told."""

    def __init__(self) -> None:
        super().__init__(MARKOV, vocab_size=VOCAB, context_length=128)
        self.fails = False

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Answer or raise."""
        if self.fails:
            raise RuntimeError("out of memory")
        return super().forward(batch)


def test_failing_forward_ends_its_batch_and_the_engine_goes_on() -> None:
    """B072: who was not in the batch is served; new requests are as well."""
    target = FailingTarget()
    harness = Harness(StepEngine(target, replace(CONFIG, max_running=2)), guesses)
    for i in (1, 2, 3):
        harness.submit(request(i))
    harness.step()
    target.fails = True
    harness.step()
    target.fails = False
    harness.submit(request(4))
    harness.run()

    expected = ids(run([request(i) for i in (3, 4)], small_engine()))
    assert isinstance(harness.emitted[1].error, EngineFailed)
    assert isinstance(harness.emitted[2].error, EngineFailed)
    assert harness.emitted[3].token_ids == expected[3]
    assert harness.emitted[4].token_ids == expected[4]
    assert harness.engine.blocks.num_in_use == 0


def test_fail_all_ends_everyone_with_the_error() -> None:
    harness = Harness(small_engine(max_running=1))
    for i in (1, 2):
        harness.submit(request(i))
    harness.step()

    output = harness.engine.fail_all(DeadlineExceeded("enough"))

    assert {failure.sequence_id for failure in output.failures} == {1, 2}
    assert harness.engine.blocks.num_in_use == 0
    assert not harness.engine.has_work()


def test_greedy_tie_stays_the_same_beside_sampled_sequences() -> None:
    """B021: logits [1, 1, 0]: token 0, alone or beside three that draw."""
    engine = small_engine(lambda _: [1.0, 1.0, *[0.0] * (VOCAB - 2)])
    drawn = SamplingParams(temperature=1.0, seed=4)

    emitted = run([request(1), *(request(i, sampling=drawn) for i in (2, 3, 4))], engine)

    assert emitted[1].token_ids == [0] * 20
    assert all(len(set(emitted[i].token_ids)) > 1 for i in (2, 3, 4))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_of_the_vocabulary_is_never_emitted(temperature: float) -> None:
    """B079, B114: rows beyond the tokenizer are the best by far, and are not there."""
    engine = small_engine(lambda tokens: [*MARKOV(tokens), 90.0, math.nan], vocab_size=VOCAB + 2)
    requests = [
        request(i, sampling=SamplingParams(temperature=temperature, seed=i), num_logprobs=2)
        for i in range(1, 4)
    ]

    emitted = run(requests, engine, guesses)

    plain = ids(run([replace(r, num_logprobs=None) for r in requests], small_engine()))
    assert ids(emitted) == plain
    logprobs = [each for e in emitted.values() for each in e.logprobs]
    assert all(token_id < VOCAB for each in logprobs for token_id, _ in each.top)
