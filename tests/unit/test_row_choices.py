"""Choices of all rows at once equal those made row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tree import TokenTree
from verify_service.engine import row_choices
from verify_service.engine.draft_selection import Selected
from verify_service.engine.noise import signed_key
from verify_service.engine.row_choices import (
    RowDraw,
    drawn_choices,
    draws_of,
    is_drawn_alike,
)
from verify_service.engine.sampler import choose, pick
from verify_service.engine.sampling import Rule, SamplingParams, TokenLimits
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Drafting, Request, Sequence

VOCAB = 40
TREE = TokenTree((5, 6, 7, 8), (0, 0, 1, 3))


def sequence_of(params: SamplingParams, **fields: object) -> Sequence:
    limits = TokenLimits(max_tokens=9)
    request = Request(1, (3, 4, 5), sampling=params, limits=limits)
    return Sequence(replace(request, **fields), Drafting(), 0.0, 8)  # type: ignore[arg-type]


def selected_of(params: SamplingParams) -> Selected:
    return Selected(Turn(sequence_of(params), 1, is_decode=True), TREE)


def logits_of(seed: int, num_rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn((num_rows, VOCAB), generator=generator) * 3).round(decimals=1)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**20),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    logits_seed=st.integers(0, 99),
)
def test_a_row_is_drawn_as_it_would_be_alone(
    seed: int, position: int, temperature: float, logits_seed: int
) -> None:
    """Ties included: logits are rounded, so that many are equal."""
    logits = logits_of(logits_seed, 3)
    params = SamplingParams(temperature=temperature, seed=seed)
    draws = [RowDraw(signed_key(seed, position + row), temperature) for row in range(3)]

    chosen = drawn_choices(logits, draws)

    expected = [pick(logits[row], params, position + row) for row in range(3)]
    assert [choice and choice.token_id for choice in chosen] == expected


def test_every_row_of_a_tree_has_the_noise_of_its_depth() -> None:
    """The row after a node chooses the token at that node's depth, whatever stands beside it."""
    selected = [
        selected_of(SamplingParams(temperature=0.9, seed=11)),
        selected_of(SamplingParams()),
        selected_of(SamplingParams(temperature=1.4, seed=2**63)),
    ]
    logits = logits_of(7, 3 * (1 + TREE.num_nodes))

    chosen = drawn_choices(logits, draws_of(selected))

    rows = iter(zip(logits, chosen, strict=True))
    for each in selected:
        for node in range(1 + TREE.num_nodes):
            row, choice = next(rows)
            assert choice == choose(row, each.turn.sequence, TREE.path(node))


def test_passes_of_few_rows_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(8, 7)
    draws = [RowDraw(signed_key(1, row), float(row % 3)) for row in range(7)]
    at_once = drawn_choices(logits, draws)

    monkeypatch.setattr(row_choices, "MAX_ELEMENTS", 2 * VOCAB)

    assert drawn_choices(logits, draws) == at_once


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_unusable_row_has_no_choice_and_spoils_no_other(bad: float) -> None:
    logits = logits_of(9, 3)
    logits[1, 5] = bad

    chosen = drawn_choices(logits, [RowDraw(signed_key(1, row), 1.0) for row in range(3)])

    assert [choice is None for choice in chosen] == [False, True, False]


SAMPLED = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    "params",
    [
        replace(SAMPLED, top_k=4),
        replace(SAMPLED, top_p=0.9),
        replace(SAMPLED, min_p=0.1),
        replace(SAMPLED, presence_penalty=0.5),
        replace(SAMPLED, logit_bias={3: 1.0}),
        replace(SAMPLED, rule=Rule.REJECTION),
        SamplingParams(repetition_penalty=1.2),
    ],
    ids=["top_k", "top_p", "min_p", "presence", "bias", "rejection", "greedy with penalty"],
)
def test_what_depends_on_more_is_left_to_the_row_by_row_way(params: SamplingParams) -> None:
    assert not is_drawn_alike(sequence_of(params))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_logprobs": 0},
        {"limits": TokenLimits(max_tokens=9, min_tokens=2, stop_token_ids=frozenset({1}))},
    ],
    ids=["logprobs", "minimum length"],
)
def test_what_is_asked_beside_the_token_is_left_too(fields: dict[str, object]) -> None:
    assert not is_drawn_alike(sequence_of(SAMPLED, **fields))


@pytest.mark.parametrize("params", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
def test_plain_choices_are_covered(params: SamplingParams) -> None:
    assert is_drawn_alike(sequence_of(params))


def test_no_rows_are_no_choices() -> None:
    empty: SequenceOf[RowDraw] = ()

    assert drawn_choices(torch.empty((0, VOCAB)), empty) == []
