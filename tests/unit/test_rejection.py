"""The rule REJECTION piece by piece; its distribution is tested in ``statistical``."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.settings import load_settings
from paceline.tree import ROOT, TokenTree
from paceline.v1 import types_pb2
from tests.doubles.small_engine import VOCAB, guesses, ids, request, run, small_engine
from verify_service.codec import open_to_proto
from verify_service.draft_distributions import MAX_PROBS, distributions_from_proto
from verify_service.engine.draft_trie import DraftTrie
from verify_service.engine.drawn_children import DrawnChildren, drawn_children
from verify_service.engine.rejection import Residual, emitted, picker, trial_key, trial_number
from verify_service.engine.sampling import Rule, SamplingParams
from verify_service.engine.steps import SessionOpened
from verify_service.settings import VerifySettings

NO_ONE = 1.0 - 1e-12
"""A number that rejects whatever may be rejected."""


def _residual(*weights: float) -> Residual:
    return Residual(np.arange(len(weights)), np.array(weights))


def test_number_depends_on_seed_resume_position_and_trial() -> None:
    """B026: and on nothing else."""
    keys = [trial_key(7, 0), trial_key(8, 0), trial_key(7, 5)]

    numbers = [trial_number(key, at, trial) for key in keys for at in (1, 2) for trial in (0, 1)]

    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 1 for number in numbers)
    assert trial_number(trial_key(7, 0), 1, 0) == numbers[0]


def test_certain_guess_is_accepted_whatever_the_number() -> None:
    assert emitted(_residual(0.0, 2.0, 0.0), None, [0, 1, 2], lambda trial: NO_ONE) == 1


def test_rejected_guesses_are_never_emitted() -> None:
    """B015: nor is what the target gives no probability."""
    token = emitted(_residual(0.4, 0.4, 0.0, 0.2), None, [0, 1, 2], lambda trial: NO_ONE)

    assert token == 3


def test_accepted_draw_needs_no_more_than_the_ratio() -> None:
    draws = DrawnChildren((0,), {0: 0.8, 1: 0.2})

    just_below = emitted(_residual(0.4, 0.6), draws, [], lambda trial: 0.4999)
    just_above = emitted(_residual(0.4, 0.6), draws, [], lambda trial: 0.5001)

    assert (just_below, just_above) == (0, 1)


def test_equal_distributions_survive_rounding() -> None:
    """A draw that only rounding rejects leaves no residual; the target's distribution is kept."""
    shares = dict.fromkeys(range(10), 0.1)
    draws = DrawnChildren((3,), shares)
    residual = _residual(*[0.1 * (1 - 1e-16)] * 10)

    assert emitted(residual, draws, [], lambda trial: 1.0) in range(10)


def test_draw_that_its_distribution_cannot_give_is_tried_as_a_guess() -> None:
    """B016: it states q = 0; a division by it must not accept it."""
    draws = DrawnChildren((1,), {0: 1.0})

    assert emitted(_residual(0.5, 0.5), draws, [], lambda trial: 0.6) == 0
    assert emitted(_residual(0.5, 0.5), draws, [], lambda trial: 0.4) == 1


def test_more_draws_than_the_distribution_holds_end_well() -> None:
    draws = DrawnChildren((0, 1, 2), {0: 0.5, 1: 0.5})

    assert emitted(_residual(0.1, 0.1, 0.2, 0.6), draws, [3], lambda trial: NO_ONE) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_row_without_usable_scores_gives_no_token(bad: float) -> None:
    """B057: an error of that request, never an id out of range."""
    params = SamplingParams(temperature=1.0, rule=Rule.REJECTION)
    pick = picker(1, None, (0, 1))

    assert pick(torch.tensor([0.0, bad, 1.0]), params, 0) is None
    assert pick(torch.full((3,), -math.inf), params, 0) is None


def test_impossible_tokens_are_never_drawn() -> None:
    """Scores of minus infinity (grammar, minimum length) have probability 0 also as drafts."""
    params = SamplingParams(temperature=1.0, rule=Rule.REJECTION)
    scores = torch.tensor([-math.inf, 0.0, -math.inf, 0.0])
    draws = DrawnChildren((0, 2), {0: 0.5, 2: 0.5})

    tokens = {picker(key, draws, (0,))(scores, params, 3) for key in range(200)}

    assert tokens == {1, 3}


def test_the_first_draws_told_of_a_node_stay() -> None:
    """Later ones may be a choice among draws."""
    trie = DraftTrie()
    tree, later = TokenTree((4, 5), (0, 1)), TokenTree((5, 6), (0, 1))
    shares = {4: 0.5, 5: 0.5}

    trie.merge(3, tree, [1, 2, 3], {ROOT: drawn_children(tree, ROOT, shares)})
    trie.merge(3, later, [1, 2, 3], {ROOT: drawn_children(later, ROOT, shares)})
    trie.merge(2, TokenTree((3, 7), (0, 1)), [1, 2, 3], {1: DrawnChildren((7,), {7: 1.0})})

    assert trie.root.drawn == DrawnChildren((4,), shares)
    trie.advance([5])
    assert trie.root.drawn is None
    late = TokenTree((5, 9), (0, 1))
    trie.merge(3, late, [1, 2, 3, 5], {1: drawn_children(late, 1, {9: 1.0})})
    assert trie.root.drawn == DrawnChildren((9,), {9: 1.0})


def test_greedy_rejection_gives_the_default_rules_ids() -> None:
    """B021: temperature 0 draws nothing."""
    plain = run([request(1)], small_engine())
    greedy = SamplingParams(rule=Rule.REJECTION)

    tried = run([request(1, sampling=greedy)], small_engine(), guesses)

    assert ids(tried) == ids(plain)


def test_runs_repeat_with_the_same_seed_and_drafts() -> None:
    """B026: also with logprobs, which are the target's own."""
    sampling = SamplingParams(temperature=1.0, seed=5, rule=Rule.REJECTION)
    asked = [request(n, sampling=sampling, num_logprobs=1) for n in (1, 2, 3)]

    first, second = (run(asked, small_engine(), guesses) for _ in range(2))
    other = run([request(1, sampling=SamplingParams(1.0, seed=6, rule=Rule.REJECTION))],
                small_engine(), guesses)  # fmt: skip

    assert ids(first) == ids(second)
    assert first[1].token_ids != other[1].token_ids
    assert all(each.logprob < 0 for each in first[1].logprobs)
    assert len(first[1].logprobs) == len(first[1].token_ids)
    assert sum(step.num_accepted for step in first[1].steps) > 0


@pytest.mark.parametrize("may_draw", [False, True])
def test_drafter_is_not_told_the_seed(may_draw: bool) -> None:
    """A drafter that could foretell the verifier's numbers could aim at them."""
    sampling = SamplingParams(temperature=0.7, seed=5, rule=Rule.REJECTION)

    opened = open_to_proto(
        SessionOpened("pool", request(1, sampling=sampling), (1, 2), 4), 8, may_draw=may_draw
    )

    assert opened.seed != 5
    assert opened.wants_drawn_children is may_draw
    assert opened.temperature == pytest.approx(0.7 if may_draw else 0.0)


TREE = TokenTree((3, 4, 5), (0, 0, 1))


def _message(*children: types_pb2.DrawnChildren) -> types_pb2.TokenTree:
    return types_pb2.TokenTree(drawn_children=children)


def test_distributions_are_read_per_node() -> None:
    first = types_pb2.DrawnChildren(parent=0, token_ids=[3, 4, 7], probs=[0.5, 0.25, 0.25])
    below = types_pb2.DrawnChildren(parent=1, token_ids=[5, 6], probs=[1.0, 0.0])

    read = distributions_from_proto(_message(first, below), TREE, VOCAB)

    assert read.by_node[0] == DrawnChildren((3, 4), {3: 0.5, 4: 0.25, 7: 0.25})
    assert read.by_node[1] == DrawnChildren((5,), {5: 1.0})
    assert not read.dropped


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({"parent": 9, "token_ids": [3], "probs": [1.0]}, "distribution_parent"),
        ({"token_ids": [3, 4], "probs": [1.0]}, "distribution_ids"),
        ({"token_ids": [3, 3], "probs": [0.5, 0.5]}, "distribution_ids"),
        ({"token_ids": [VOCAB], "probs": [1.0]}, "distribution_token_out_of_range"),
        ({"token_ids": [3, 4], "probs": [1.5, -0.5]}, "distribution_probability"),
        ({"token_ids": [3, 4], "probs": [math.nan, 1.0]}, "distribution_probability"),
        ({"token_ids": [3, 4], "probs": [math.inf, 0.0]}, "distribution_probability"),
        ({"token_ids": [3, 4], "probs": [0.5, 0.4]}, "distribution_sum"),
        ({}, "distribution_sum"),
        ({"token_ids": [3], "probs": [0.0]}, "distribution_sum"),
        ({"token_ids": range(MAX_PROBS + 1), "probs": [0.0] * MAX_PROBS}, "distribution_too_large"),
    ],
)
def test_malformed_distribution_is_dropped_and_counted(bad: dict[str, object], cause: str) -> None:
    """B058, B113, B114: hostile or padded beyond the tokenizer; the node counts as chosen."""
    good = types_pb2.DrawnChildren(parent=1, token_ids=[5], probs=[1.0])
    message = types_pb2.DrawnChildren(**bad)  # type: ignore[arg-type]  # field names

    read = distributions_from_proto(_message(good, message), TREE, VOCAB)

    assert dict(read.dropped) == {cause: 1}
    assert set(read.by_node) == {1}


def test_distribution_named_twice_counts_once() -> None:
    one = types_pb2.DrawnChildren(parent=0, token_ids=[3], probs=[1.0])
    two = types_pb2.DrawnChildren(parent=0, token_ids=[4], probs=[1.0])

    read = distributions_from_proto(_message(one, two), TREE, VOCAB)

    assert read.by_node[0].draft_probs == {3: 1.0}
    assert dict(read.dropped) == {"distribution_repeated": 1}


def test_pools_are_trusted_by_name(tmp_path: Path) -> None:
    """B094: from flag, environment-like text and file alike; none by default."""
    config = tmp_path / "settings.yaml"
    config.write_text("trusted_pools: [one, two]\n")

    flags = load_settings(VerifySettings, "verify_service", ["--trusted-pools", "one, two"])
    repeated = ["--trusted-pools", "one", "--trusted-pools", "two"]
    twice = load_settings(VerifySettings, "verify_service", repeated)
    file = load_settings(VerifySettings, "verify_service", ["--config", str(config)])

    assert flags.trusted_pools == twice.trusted_pools == file.trusted_pools == ("one", "two")
    assert VerifySettings().trusted_pools == ()


def test_wide_rows_need_no_more_than_their_order() -> None:
    """Ids come in order where nothing is cut and by rank where something is: the same draws."""
    scores = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    plain = SamplingParams(temperature=1.0, rule=Rule.REJECTION)
    ranked = SamplingParams(temperature=1.0, top_k=4999, rule=Rule.REJECTION)
    least = int(scores.argmin())

    pairs = [
        tuple(picker(key, None, (7, 8))(scores, params, 3) for params in (plain, ranked))
        for key in range(50)
    ]

    assert all(one == other for one, other in pairs if one != least)
