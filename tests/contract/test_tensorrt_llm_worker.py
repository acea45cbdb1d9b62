"""
Drafter and resource manager against the executor's recorded order of calls, in every family.

The executor dies of any exception, of a missing or over-long chain, and of a shared list; the fake
does too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doubles.fake_tensorrt_llm.executor import drain
from tests.doubles.fake_tensorrt_llm.modules import DRAFTERS
from tests.doubles.fake_tensorrt_llm.requests import LlmRequest
from tests.doubles.tensorrt_verifier import LOGITS, VOCAB, greedy
from tests.doubles.tensorrt_worker import TensorRtWorker
from verify_service.engines.tensorrt_llm.wire_frames import Closed, Committed, Limit, Placed

PROMPT = [2, 7, 1]
NUM_TOKENS = 24
MakeWorker = Callable[..., TensorRtWorker]


@pytest.fixture
def make_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorker]:
    made: list[TensorRtWorker] = []

    def make(**options: Any) -> TensorRtWorker:
        made.append(TensorRtWorker(monkeypatch, LOGITS, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def generated(request: LlmRequest) -> list[int]:
    return request.get_tokens(0)[request.py_orig_prompt_len :]


@pytest.mark.parametrize("family", sorted(DRAFTERS))
def test_without_a_fact_every_chain_is_empty(family: str, make_worker: MakeWorker) -> None:
    worker = make_worker(family=family)
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == greedy(PROMPT, NUM_TOKENS)
    assert all(not chain for _, chain in worker.executor.chains)
    assert worker.committed(1, len(PROMPT)) == generated(request)


@pytest.mark.parametrize("family", sorted(DRAFTERS))
def test_a_fact_about_the_prompt_helps_from_the_first_step(
    family: str, make_worker: MakeWorker
) -> None:
    worker = make_worker(family=family)
    target = greedy(PROMPT, NUM_TOKENS)
    worker.post(1, len(PROMPT), target[:9])
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == target
    assert [chain for _, chain in worker.executor.chains][:2] == [
        tuple(target[1:5]),
        tuple(target[6:9]),
    ]
    placed = [frame for frame in worker.sent if isinstance(frame, Placed)]
    assert placed[0] == Placed(1, len(PROMPT) + 1, 4)
    accepted = [frame.num_accepted for frame in worker.sent if isinstance(frame, Committed)]
    assert accepted[:3] == [0, 4, 3]


@pytest.mark.parametrize("family", sorted(DRAFTERS))
def test_drafts_arrive_after_the_shutdown_in_the_middle_of_the_packages_start(
    family: str, make_worker: MakeWorker
) -> None:
    """The package measures memory with an executor of its own, then goes on with our objects."""
    worker = make_worker(family=family)
    target = greedy(PROMPT, NUM_TOKENS)

    worker.executor.rehearse()
    worker.reopen()
    worker.post(1, len(PROMPT), target[:9])
    request = worker.submit(1, PROMPT, NUM_TOKENS)
    drain(worker.executor)

    assert generated(request) == target
    assert worker.executor.chains[0][1] == tuple(target[1:5])
    assert worker.committed(1, len(PROMPT)) == target


def test_a_late_fact_is_rerooted(make_worker: MakeWorker) -> None:
    worker = make_worker()
    target = greedy(PROMPT, NUM_TOKENS)
    request = worker.submit(1, PROMPT, NUM_TOKENS)
    for _ in range(5):
        worker.executor.step()
    done = len(generated(request))
    worker.post(1, len(PROMPT) + 1, target[1:12])

    worker.executor.step()

    assert worker.executor.chains[-1] == (1, tuple(target[done : done + 4]))


def test_a_fact_that_the_target_contradicted_is_dropped(make_worker: MakeWorker) -> None:
    worker = make_worker()
    target = greedy(PROMPT, NUM_TOKENS)
    worker.submit(1, PROMPT, NUM_TOKENS)
    for _ in range(3):
        worker.executor.step()
    worker.post(1, len(PROMPT) + 1, [(target[1] + 1) % VOCAB, target[2], target[3]])

    worker.executor.step()

    assert worker.executor.chains[-1] == (1, ())
    assert worker.mailbox.counts["stale"] == 1


def test_a_fact_told_twice_counts_once(make_worker: MakeWorker) -> None:
    worker = make_worker()
    target = greedy(PROMPT, NUM_TOKENS)
    worker.post(1, len(PROMPT), target[:3])
    worker.post(1, len(PROMPT), target[:3])
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == target
    assert sum(len(chain) for _, chain in worker.executor.chains) == 2


def test_a_budget_of_zero_drafts_nothing(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.mailbox.receive(Limit(1, 0))
    worker.post(1, len(PROMPT), greedy(PROMPT, 8))
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == greedy(PROMPT, NUM_TOKENS)
    assert all(not chain for _, chain in worker.executor.chains)


def test_no_chain_reaches_beyond_the_last_token(make_worker: MakeWorker) -> None:
    worker = make_worker()
    target = greedy(PROMPT, 30)
    worker.post(1, len(PROMPT), target)
    request = worker.submit(1, PROMPT, 4)

    drain(worker.executor)

    assert generated(request) == target[:4]
    assert worker.executor.chains == [(1, tuple(target[1:3]))]


def test_a_token_outside_the_vocabulary_empties_the_chain(make_worker: MakeWorker) -> None:
    worker = make_worker()
    target = greedy(PROMPT, NUM_TOKENS)
    worker.post(1, len(PROMPT), [target[0], VOCAB])
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == target
    assert worker.mailbox.counts["out_of_vocabulary"] == 1


def test_an_exception_inside_leaves_empty_chains(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    monkeypatch.setattr(worker.mailbox, "request", _fail)
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == greedy(PROMPT, NUM_TOKENS)
    assert worker.mailbox.counts["error"] > 0


def test_a_mailbox_that_cannot_be_opened_leaves_empty_chains(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor's own placeholder, zeros, would be verified as a draft."""
    worker = make_worker()
    monkeypatch.setattr(type(worker.executor.drafter), "_placing", _refuse)
    request = worker.submit(1, PROMPT, NUM_TOKENS)

    drain(worker.executor)

    assert generated(request) == greedy(PROMPT, NUM_TOKENS)
    assert all(not chain for _, chain in worker.executor.chains)


def _refuse(drafter: object) -> None:
    raise OSError(f"no thread for {drafter}")


def test_a_merge_that_takes_long_holds_up_no_step(make_worker: MakeWorker) -> None:
    """The output stream tells what is not reported meanwhile; reports go on behind it."""
    worker = make_worker()
    request = worker.submit(1, PROMPT, NUM_TOKENS)
    drafts = worker.mailbox.request(1)
    with drafts.lock:
        worker.executor.step()
        worker.executor.step()
    assert worker.committed(1, len(PROMPT)) == []

    drain(worker.executor)

    reported = [frame for frame in worker.sent if isinstance(frame, Committed)]
    assert generated(request) == greedy(PROMPT, NUM_TOKENS)
    assert reported[0].base_len == len(PROMPT) + 2
    assert sum((frame.token_ids for frame in reported), ()) == tuple(generated(request)[2:])
    assert worker.mailbox.counts["busy"] > 0


def _fail(client_id: int) -> None:
    raise RuntimeError(f"request {client_id}")


def test_padding_that_the_target_draws_is_not_counted_as_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chains are padded with token 0; a target that says 0 'accepts' the padding."""
    worker = TensorRtWorker(monkeypatch, lambda tokens: [1.0] + [0.0] * (VOCAB - 1))
    request = worker.submit(1, PROMPT, 20)

    drain(worker.executor)
    worker.close()

    assert generated(request) == [0] * 20
    assert all(frame.num_accepted == 0 for frame in worker.sent if isinstance(frame, Committed))


def test_a_finished_request_is_reported_once_although_freed_before_its_update(
    make_worker: MakeWorker,
) -> None:
    worker = make_worker()
    target = greedy(PROMPT, 6)
    worker.post(1, len(PROMPT), target)
    worker.submit(1, PROMPT, 6)

    drain(worker.executor)

    reports = [frame for frame in worker.sent if isinstance(frame, Committed)]
    assert [token for frame in reports for token in frame.token_ids] == target
    assert sum(isinstance(frame, Closed) for frame in worker.sent) == 1


@pytest.mark.parametrize("family", sorted(DRAFTERS))
def test_a_paused_request_comes_back_and_loses_nothing(
    family: str, make_worker: MakeWorker
) -> None:
    worker = make_worker(family=family, max_kv_tokens=60)
    prompts = {client: [client, 2, 3] for client in (1, 2, 3)}
    requests = {client: worker.submit(client, prompt, 24) for client, prompt in prompts.items()}
    for client, prompt in prompts.items():
        worker.post(client, len(prompt), greedy(prompt, 12))

    drain(worker.executor)

    assert worker.executor.num_pauses > 0
    for client, prompt in prompts.items():
        assert generated(requests[client]) == greedy(prompt, 24)
        assert worker.committed(client, len(prompt)) == greedy(prompt, 24)


def test_a_cancelled_request_is_closed(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.submit(1, PROMPT, NUM_TOKENS)
    worker.executor.step()
    worker.executor.cancel(1)

    drain(worker.executor)

    assert Closed(1) in worker.sent


FACTS = st.lists(
    st.tuples(
        st.integers(0, 40), st.lists(st.integers(0, VOCAB + 3), max_size=12), st.integers(0, 12)
    ),
    max_size=12,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(facts=FACTS, truth=st.booleans(), stop=st.booleans())
def test_no_fact_at_any_time_changes_a_token(
    make_worker: MakeWorker,
    facts: list[tuple[int, list[int], int]],
    truth: bool,
    stop: bool,
) -> None:
    """Drafts are hints: whatever is said, and whenever, the target's own text comes out."""
    worker = make_worker(num_drafts=5)
    target = greedy(PROMPT, NUM_TOKENS)
    end = target.index(target[10]) + 1 if stop else NUM_TOKENS
    request = worker.submit(1, PROMPT, NUM_TOKENS, [target[10]] if stop else None)
    while worker.executor.has_work:
        for base_len, tokens, when in facts:
            if when == worker.executor.num_steps:
                true = target[max(base_len - len(PROMPT), 0) :][: len(tokens)]
                worker.post(1, base_len, true if truth else tokens)
        worker.executor.step()

    assert generated(request) == target[:end]
    assert worker.committed(1, len(PROMPT)) == target[:end]
