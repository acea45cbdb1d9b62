"""Choices of all rows at once equal those made row by row, whatever the parameters."""

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
from verify_service.engine.row_choices import DrawnChoices, drawn_tokens
from verify_service.engine.row_cuts import OPEN, UNUSABLE, RowDraw
from verify_service.engine.sampler import Choice, choose, is_drawn_alike, pick
from verify_service.engine.sampling import Rule, SamplingParams, TokenLimits
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Drafting, Request, Sequence

VOCAB = 40
WIDE = 3000
TREE = TokenTree((5, 6, 7, 8), (0, 0, 1, 3))
TREES = (TokenTree(), TREE, TokenTree.chain((5, 5, 9)), TokenTree((3, 4), (0, 0)))


def sequence_of(params: SamplingParams, **fields: object) -> Sequence:
    request = Request(1, (3, 4, 5, 4), sampling=params, limits=TokenLimits(max_tokens=9))
    return Sequence(replace(request, **fields), Drafting(), 0.0, 8)  # type: ignore[arg-type]


def selected_of(params: SamplingParams, tree: TokenTree = TREE, **fields: object) -> Selected:
    return Selected(Turn(sequence_of(params, **fields), 1, is_decode=True), tree)


def logits_of(seed: int, num_rows: int, *, vocab: int = VOCAB, decimals: int = 1) -> torch.Tensor:
    """Return random logits, rounded so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn((num_rows, vocab), generator=generator) * 3).round(decimals=decimals)


def num_rows_of(selected: SequenceOf[Selected]) -> int:
    return sum(1 + each.tree.num_nodes for each in selected)


def assert_chosen_alike(logits: torch.Tensor, selected: SequenceOf[Selected]) -> int:
    """Compare with the row-by-row way; return how many rows are left to it."""
    before = logits.clone()
    chosen = DrawnChoices(logits, selected)
    num_open = row = 0
    for each in selected:
        sequence, tree = each.turn.sequence, each.tree
        for node in range(1 + tree.num_nodes):
            if chosen.is_sure(row):
                expected = choose(logits[row], sequence, tree.path(node))
                assert_same(chosen.at(row), expected)
            num_open += not chosen.is_sure(row)
            row += 1
    assert torch.equal(logits, before) or bool(logits.isnan().any())
    return num_open


def assert_same(ours: Choice | None, theirs: Choice | None) -> None:
    """Ids are equal; log-probabilities are, up to how a row's sum rounds."""
    assert (ours and ours.token_id) == (theirs and theirs.token_id)
    if ours is None or theirs is None or theirs.logprobs is None:
        assert ours is None or ours.logprobs is None
        return
    assert ours.logprobs is not None
    assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-9)
    ours_top, theirs_top = ours.logprobs.top, theirs.logprobs.top
    assert [p for _, p in ours_top] == pytest.approx([p for _, p in theirs_top], abs=1e-9)


params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, VOCAB - 1, VOCAB, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.6, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.4, 0.7]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.0, 0.1])),
    seed=st.integers(0, 2**64 - 1),
)
limits = st.builds(
    TokenLimits,
    max_tokens=st.just(30),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
)
sequences = st.builds(
    selected_of,
    params_of_any_kind,
    tree=st.sampled_from(TREES),
    limits=limits,
    emitted_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=5).map(tuple),
    num_logprobs=st.sampled_from([None, None, 0, 3, 60]),
)


@settings(max_examples=250, deadline=None)
@given(
    selected=st.lists(sequences, min_size=1, max_size=4),
    logits_seed=st.integers(0, 2**20),
    decimals=st.sampled_from([0, 1, 6]),
)
def test_every_row_is_chosen_as_it_would_be_alone(
    selected: list[Selected], logits_seed: int, decimals: int
) -> None:
    """B019, B022-B025: with tokens of its own path counted, whatever rows stand beside it."""
    logits = logits_of(logits_seed, num_rows_of(selected), decimals=decimals)

    assert_chosen_alike(logits, selected)


@settings(max_examples=40, deadline=None)
@given(
    params=st.lists(params_of_any_kind, min_size=1, max_size=3),
    logits_seed=st.integers(0, 2**20),
    decimals=st.sampled_from([1, 6]),
)
def test_wide_rows_are_chosen_as_they_would_be_alone(
    params: list[SamplingParams], logits_seed: int, decimals: int
) -> None:
    """Only their best tokens are ordered."""
    selected = [selected_of(each) for each in params]
    logits = logits_of(logits_seed, num_rows_of(selected), vocab=WIDE, decimals=decimals)

    assert_chosen_alike(logits, selected)


@settings(max_examples=60, deadline=None)
@given(
    selected=st.lists(sequences, min_size=2, max_size=4),
    logits_seed=st.integers(0, 2**20),
    where=st.integers(0, 3),
)
def test_a_row_does_not_know_its_neighbours(
    selected: list[Selected], logits_seed: int, where: int
) -> None:
    """What keeps 'with and without drafting, same ids': batch and place change no choice."""
    logits = logits_of(logits_seed, num_rows_of(selected))
    place = where % len(selected)
    first = num_rows_of(selected[:place])
    num_rows = num_rows_of([selected[place]])

    together = DrawnChoices(logits, selected)
    alone = DrawnChoices(logits[first : first + num_rows], [selected[place]])

    for row in range(num_rows):
        if together.is_sure(first + row) and alone.is_sure(row):
            assert_same(together.at(first + row), alone.at(row))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.8, top_k=50),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.02),
        SamplingParams(temperature=0.8, min_p=0.05, presence_penalty=0.4),
    ],
    ids=["noise", "top_k", "top_p", "all cuts", "min_p and penalty"],
)
def test_hardly_a_row_is_left_to_be_asked_alone(params: SamplingParams) -> None:
    selected = [selected_of(replace(params, seed=seed)) for seed in range(40)]
    logits = logits_of(5, num_rows_of(selected), vocab=WIDE, decimals=6)

    assert assert_chosen_alike(logits, selected) == 0


@pytest.mark.parametrize(
    ("row", "params"),
    [
        pytest.param([1.0] * 4, SamplingParams(1.0, top_p=0.5), id="a cut where sums round"),
        pytest.param([1.0] * WIDE, SamplingParams(1.0, top_k=7), id="ties past the best"),
        pytest.param([0.0] * WIDE, SamplingParams(1.0, top_p=0.9), id="a nucleus past the best"),
        pytest.param(list(range(WIDE)), SamplingParams(1.0, top_k=2000), id="many ranks"),
    ],
)
def test_what_the_best_tokens_cannot_settle_stays_open(
    row: list[float], params: SamplingParams
) -> None:
    draw = RowDraw(signed_key(1, 1), 1.0, params.top_k, params.top_p)

    assert drawn_tokens(torch.tensor([row]), [draw]).tolist() == [OPEN]


def test_passes_of_few_rows_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(8, 9)
    draws = [
        RowDraw(signed_key(1, row), float(row % 3), top_p=0.9 if row % 2 else 1.0)
        for row in range(9)
    ]
    at_once = drawn_tokens(logits, draws)

    monkeypatch.setattr(row_choices, "MAX_ELEMENTS", 2 * VOCAB)

    assert torch.equal(drawn_tokens(logits, draws), at_once)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_unusable_row_has_no_choice_and_spoils_no_other(bad: float, top_p: float) -> None:
    """B057: no id is made up from NaN."""
    logits = logits_of(9, 3)
    logits[1, 5] = bad
    draws = [RowDraw(signed_key(1, row), 1.0, top_p=top_p) for row in range(3)]

    chosen = drawn_tokens(logits, draws).tolist()

    assert [token_id == UNUSABLE for token_id in chosen] == [False, True, False]
    assert None not in [pick(logits[row], SamplingParams(1.0), row) for row in (0, 2)]


class AllowsAll:
    """A constraint that forbids nothing."""

    def mask(self, path: SequenceOf[int]) -> torch.Tensor:
        del path
        return torch.ones(VOCAB, dtype=torch.bool)


@pytest.mark.parametrize(
    "sequence",
    [
        sequence_of(SamplingParams(1.0, rule=Rule.REJECTION)),
        sequence_of(SamplingParams(), constraint=AllowsAll()),
    ],
    ids=["rejection", "constraint"],
)
def test_what_depends_on_drafts_or_grammars_is_left_to_the_row_by_row_way(
    sequence: Sequence,
) -> None:
    assert not is_drawn_alike(sequence)


@pytest.mark.parametrize(
    "params",
    [SamplingParams(1.0), SamplingParams(), SamplingParams(rule=Rule.REJECTION)],
    ids=["sampled", "greedy", "greedy by any rule"],
)
def test_plain_choices_are_covered(params: SamplingParams) -> None:
    assert is_drawn_alike(sequence_of(params))
