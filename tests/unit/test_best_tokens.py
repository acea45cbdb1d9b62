"""The engine asks for the largest logits alone where nobody needs the others."""

from __future__ import annotations

import pytest
import torch

from tests.doubles.small_engine import CONFIG, MARKOV, VOCAB, Clock, guesses, ids, request, run
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import StepEngine
from verify_service.targets.table import TableTarget
from verify_service.targets.target import FlatBatch


class BestTable(TableTarget):
    """A table that finds the largest logits by itself, and counts what it is asked for."""

    def __init__(self, *, able: bool = True) -> None:
        super().__init__(MARKOV, vocab_size=VOCAB, context_length=128)
        self.able = able
        self.unusable = False
        self.num_best = 0
        self.num_all = 0

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Return all logits."""
        self.num_all += 1
        return super().forward(batch)

    def best_tokens(self, batch: FlatBatch) -> list[int | None] | None:
        """Return the ids with the largest."""
        if not self.able:
            return None
        self.num_best += 1
        best: list[int | None] = list(super().forward(batch).argmax(dim=1).tolist())
        return [None] * len(best) if self.unusable else best


def engine_of(target: TableTarget) -> StepEngine:
    return StepEngine(target, CONFIG, clock=Clock())


def run_over(
    target: TableTarget, requests: list[Request], *, drafted: bool
) -> dict[int, list[int]]:
    return ids(run(requests, engine_of(target), guesses if drafted else None))


@pytest.mark.parametrize("drafted", [False, True])
def test_greedy_requests_get_the_same_ids_without_a_row_of_logits(drafted: bool) -> None:
    requests = [request(1), request(2, max_tokens=9), request(3)]
    plain, best = TableTarget(MARKOV, vocab_size=VOCAB, context_length=128), BestTable()

    assert run_over(best, requests, drafted=drafted) == run_over(plain, requests, drafted=False)
    assert best.num_best > 0
    assert best.num_all == 0


@pytest.mark.parametrize(
    "other",
    [
        request(2, sampling=SamplingParams(temperature=0.8, seed=4)),
        request(2, sampling=SamplingParams(frequency_penalty=0.5)),
        request(2, sampling=SamplingParams(logit_bias={3: 2.0})),
        request(2, num_logprobs=0),
        request(2, limits=TokenLimits(20, min_tokens=5, stop_token_ids=frozenset({3}))),
    ],
)
def test_one_request_that_needs_logits_gets_them_for_as_long_as_it_runs(other: Request) -> None:
    requests = [request(1, max_tokens=40), other]
    plain, best = TableTarget(MARKOV, vocab_size=VOCAB, context_length=128), BestTable()

    assert run_over(best, requests, drafted=True) == run_over(plain, requests, drafted=False)
    assert best.num_all > 0
    assert best.num_best > 0


def test_target_that_is_not_able_is_asked_for_all_logits() -> None:
    target = BestTable(able=False)

    run_over(target, [request(1)], drafted=True)

    assert target.num_all > 0


def test_rows_without_a_finite_largest_logit_fail_their_request() -> None:
    target = BestTable()
    target.unusable = True

    emitted = run([request(1)], engine_of(target))

    error = emitted[1].error
    assert error is not None
    assert "no usable probabilities" in str(error)
