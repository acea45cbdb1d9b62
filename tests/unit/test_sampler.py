"""The target's own choice, option by option, against a naive reference in numpy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.noise import gumbel_noise
from verify_service.engine.sampler import Choice, choose, pick
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Drafting, Request, Sequence

VOCAB = 24
PROMPT = (1, 2, 3, 2)

Scores = NDArray[np.float64]


def _sequence(
    params: SamplingParams,
    *,
    emitted: SequenceOf[int] = (),
    limits: TokenLimits | None = None,
    num_logprobs: int | None = None,
) -> Sequence:
    request = Request(
        1,
        PROMPT,
        tuple(emitted),
        sampling=params,
        limits=limits or TokenLimits(max_tokens=99),
        num_logprobs=num_logprobs,
    )
    return Sequence(request, Drafting(), 0.0, 8)


def _logits(seed: int, size: int = VOCAB, spread: float = 3.0) -> list[float]:
    values = np.random.default_rng(seed).normal(scale=spread, size=size)
    return [float(value) for value in values.astype(np.float32)]


def _penalized(
    logits: SequenceOf[float], params: SamplingParams, output: SequenceOf[int]
) -> Scores:
    scores = np.array(logits, dtype=np.float64)
    for token_id in {*PROMPT, *output}:
        penalty = params.repetition_penalty
        scores[token_id] *= penalty if scores[token_id] <= 0 else 1 / penalty
    for token_id, count in Counter(output).items():
        scores[token_id] -= params.presence_penalty + params.frequency_penalty * count
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    return scores


def _cut(scaled: Scores, params: SamplingParams) -> list[int]:
    kept = sorted(range(len(scaled)), key=lambda token_id: -scaled[token_id])
    if params.top_k:
        kept = kept[: params.top_k]
    weights = np.exp(scaled[kept] - scaled.max())
    before = np.cumsum(weights / weights.sum()) - weights / weights.sum()
    kept = [token_id for token_id, mass in zip(kept, before, strict=True) if mass < params.top_p]
    if params.min_p:
        floor = scaled.max() + math.log(params.min_p)
        kept = [token_id for token_id in kept if scaled[token_id] >= floor]
    return kept


def _reference(
    logits: SequenceOf[float],
    params: SamplingParams,
    output: SequenceOf[int],
    limits: TokenLimits | None = None,
) -> int:
    scores = _penalized(logits, params, output)
    if limits is not None and len(output) < limits.min_tokens:
        scores[list(limits.stop_token_ids)] = -math.inf
    if params.is_greedy:
        return int(scores.argmax())
    scaled = scores / params.temperature
    kept = np.array(_cut(scaled, params))
    noise = gumbel_noise(params.seed, len(PROMPT) + len(output), kept)
    return int(kept[(scaled[kept] + noise).argmax()])


def _chosen(
    logits: SequenceOf[float],
    params: SamplingParams,
    emitted: SequenceOf[int] = (),
    path: SequenceOf[int] = (),
    limits: TokenLimits | None = None,
) -> int | None:
    sequence = _sequence(params, emitted=emitted, limits=limits)
    choice = choose(torch.tensor(logits), sequence, path)
    return None if choice is None else choice.token_id


params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, VOCAB, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.6, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.4, 0.7]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.0, 100.0])),
    seed=st.integers(0, 2**64 - 1),
)
outputs = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), params=params_of_any_kind, output=outputs, split=st.integers(0))
def test_choice_equals_the_reference_whatever_the_options(
    seed: int, params: SamplingParams, output: list[int], split: int
) -> None:
    """B019, B022, B023, B025: drafted tokens of the path count as if they were emitted."""
    logits = _logits(seed)
    cut = split % (len(output) + 1)

    chosen = _chosen(logits, params, output[:cut], output[cut:])

    assert chosen == _reference(logits, params, output)


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(SamplingParams(temperature=1.0, seed=1), id="temperature"),
        pytest.param(SamplingParams(temperature=1.0, top_p=0.99, seed=1), id="flat nucleus"),
        pytest.param(SamplingParams(temperature=0.2, top_p=0.5, seed=1), id="peaked nucleus"),
        pytest.param(SamplingParams(temperature=1.0, top_k=1500, top_p=0.97), id="top-k and top-p"),
        pytest.param(SamplingParams(temperature=1.5, min_p=0.01, seed=1), id="min-p"),
    ],
)
def test_large_vocabulary_takes_no_other_choice(params: SamplingParams) -> None:
    """Shortcuts (noise bound, head of the nucleus) are exact."""
    for row in range(8):
        logits = _logits(row, size=3000, spread=1.0 if row % 2 else 4.0)

        chosen = _chosen(logits, params)

        assert chosen == _reference(logits, params, ())


@pytest.mark.parametrize("size", [VOCAB, 3000], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_k=9, top_p=0.9),
        SamplingParams(temperature=1.0, top_p=0.6),
    ],
    ids=["top_k", "top_k and top_p", "top_p"],
)
def test_of_tokens_that_tie_at_a_cut_the_first_are_kept(params: SamplingParams, size: int) -> None:
    """Half precision ties often; which of them stay must not depend on how they are searched."""
    for seed in range(12):
        logits = [round(value) for value in _logits(seed, size=size)]

        chosen = _chosen([float(v) for v in logits], replace(params, seed=seed))

        assert chosen == _reference(logits, replace(params, seed=seed), ())


def test_options_do_change_the_choice() -> None:
    """B029, B094-B096: none of them is without effect."""
    flat = [0.01 * token_id for token_id in range(VOCAB)]
    base = SamplingParams(temperature=1.0)

    def distinct(*variants: SamplingParams) -> int:
        return len({tuple(_chosen(flat, v, [0] * n) for n in range(12)) for v in variants})

    assert distinct(*(replace(base, seed=seed) for seed in range(10))) == 10
    assert distinct(base, replace(base, temperature=0.01)) == 2
    assert distinct(base, replace(base, top_k=2)) == 2
    assert distinct(base, replace(base, top_p=0.1)) == 2
    assert distinct(base, replace(base, min_p=0.95)) == 2
    assert distinct(base, replace(base, logit_bias={5: 100.0})) == 2


def test_penalties_weigh_prompt_and_output_as_documented() -> None:
    """Repetition counts the prompt; presence and frequency count the output alone."""
    logits = [0.0, 5.0, 4.9, 4.8, 4.0, *[-9.0] * (VOCAB - 5)]

    assert _chosen(logits, SamplingParams()) == 1
    assert _chosen(logits, SamplingParams(repetition_penalty=2.0)) == 4
    assert _chosen(logits, SamplingParams(presence_penalty=1.0)) == 1
    assert _chosen(logits, SamplingParams(presence_penalty=1.0), [1]) == 2
    assert _chosen(logits, SamplingParams(frequency_penalty=0.05), [1]) == 1
    assert _chosen(logits, SamplingParams(frequency_penalty=0.06), [1, 1]) == 2
    assert _chosen(logits, SamplingParams(frequency_penalty=-2.0), [3]) == 3


@pytest.mark.parametrize(
    ("num_emitted", "path", "is_allowed"),
    [(0, 0, False), (1, 1, False), (0, 3, True), (3, 0, True)],
)
def test_stop_token_waits_for_the_minimum_length(
    num_emitted: int, path: int, is_allowed: bool
) -> None:
    limits = TokenLimits(max_tokens=9, min_tokens=3, stop_token_ids=frozenset({7}))
    logits = [float(token_id == 7) * 50 for token_id in range(VOCAB)]

    chosen = _chosen(logits, SamplingParams(), [0] * num_emitted, [0] * path, limits)

    assert (chosen == 7) is is_allowed


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("row", "is_usable"),
    [
        pytest.param([1.0, math.nan, 0.0], False, id="one NaN"),
        pytest.param([math.nan] * 3, False, id="all NaN"),
        pytest.param([-math.inf] * 3, False, id="nothing left"),
        pytest.param([1.0, math.inf, 0.0], False, id="infinity"),
        pytest.param([1.0, -math.inf, 0.0], True, id="one impossible token"),
    ],
)
def test_row_without_usable_numbers_gives_no_token(
    row: list[float], is_usable: bool, temperature: float
) -> None:
    """B057: no id is made up from NaN."""
    params = SamplingParams(temperature=temperature, seed=3)

    picks = [pick(torch.tensor(row), params, position) for position in range(30)]

    assert all((token_id is not None) is is_usable for token_id in picks)
    assert 1 not in picks


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.5}])
def test_greedy_tie_goes_to_the_first_token(options: dict[str, float]) -> None:
    """B021: at temperature 0 nothing is drawn, cuts or not."""
    params = [SamplingParams(seed=seed, **options) for seed in range(50)]  # type: ignore[arg-type]  # field names

    assert {pick(torch.tensor([1.0, 1.0, 0.0]), each, 5) for each in params} == {0}


def test_tied_tokens_are_drawn_evenly_above_zero() -> None:
    params = SamplingParams(temperature=1.0, seed=11)

    counts = Counter(pick(torch.tensor([1.0, 1.0, -99.0]), params, p) for p in range(2000))

    assert set(counts) == {0, 1}
    assert abs(counts[0] - 1000) < 150


def test_single_token_survives_every_cut() -> None:
    params = SamplingParams(temperature=1.0, top_k=1, top_p=1e-6, min_p=1.0)

    assert pick(torch.tensor([0.0, 3.0, 1.0]), params, 0) == 1


def _logprob_choice(logits: SequenceOf[float], params: SamplingParams, num_top: int) -> Choice:
    choice = choose(torch.tensor(logits), _sequence(params, num_logprobs=num_top), ())
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=2.0, top_k=3, seed=4),
        SamplingParams(repetition_penalty=1.7, logit_bias={6: 100.0}),
    ],
    ids=["greedy", "sampled", "adjusted"],
)
def test_logprobs_are_the_models_own(params: SamplingParams) -> None:
    """B030, B031: of the unmodified distribution, whatever was drawn from which other."""
    logits = _logits(8)
    expected = np.array(logits) - np.log(np.exp(np.array(logits)).sum())

    choice = _logprob_choice(logits, params, 4)

    assert choice.logprobs is not None
    assert choice.logprobs.logprob == pytest.approx(expected[choice.token_id], abs=1e-5)
    assert [token_id for token_id, _ in choice.logprobs.top] == list(np.argsort(-expected)[:4])
    assert [value for _, value in choice.logprobs.top] == pytest.approx(
        sorted(expected)[::-1][:4], abs=1e-5
    )
    assert sum(math.exp(value) for _, value in choice.logprobs.top) <= 1


def test_no_more_top_logprobs_than_asked_or_there_are() -> None:
    zero = _logprob_choice([0.0, 1.0], SamplingParams(), 0).logprobs
    many = _logprob_choice([0.0, 1.0], SamplingParams(), 20).logprobs

    assert zero is not None
    assert zero.top == ()
    assert many is not None
    assert len(many.top) == 2
