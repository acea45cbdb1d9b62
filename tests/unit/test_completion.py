"""Where emission ends, wherever in an accepted run that is: hand-written tables, oracle drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Emitted, Harness, ProposeTree
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import FinishReason, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets.table import TableTarget
from verify_service.targets.target import FlatBatch

VOCAB = 26
EOS = 25
CYCLE = {token_id: (token_id + 1) % 24 for token_id in range(24)}
"""0 1 2 ... 23 0 1 ..."""

CONFIG = EngineConfig(
    num_blocks=64,
    block_size=4,
    max_draft_tokens=16,
    budget=BudgetMode.FIXED,
    draft_pools=(POOL,),
)


class WatchedTarget(TableTarget):
    """A table of transitions that notes the deepest position it was asked for."""

    def __init__(self, following: Mapping[int, int], context_length: int = 200) -> None:
        super().__init__(
            lambda tokens: [float(following.get(tokens[-1], 0) == t) for t in range(VOCAB)],
            vocab_size=VOCAB,
            context_length=context_length,
        )
        self.last_position = 0

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Note positions, then answer."""
        for span in batch.spans:
            self.last_position = max(self.last_position, *span.positions)
        return super().forward(batch)


def _oracle(following: Mapping[int, int], depth: int) -> ProposeTree:
    def propose(committed: Sequence[int]) -> TokenTree:
        token_ids: list[int] = []
        last = committed[-1]
        for _ in range(depth):
            last = following.get(last, 0)
            token_ids.append(last)
        return TokenTree.chain(token_ids)

    return propose


def _run(
    prompt: Sequence[int],
    limits: TokenLimits,
    *,
    depth: int,
    following: Mapping[int, int] = CYCLE,
    target: TableTarget | None = None,
    config: EngineConfig = CONFIG,
) -> Emitted:
    engine = StepEngine(target or WatchedTarget(following), config)
    harness = Harness(engine, _oracle(following, depth) if depth else None)
    harness.submit(Request(1, tuple(prompt), limits=limits))
    harness.run()
    assert engine.blocks.num_in_use == 0
    emitted = harness.emitted[1]
    for step in emitted.steps:
        assert step.num_accepted == max(len(step.token_ids) - 1, 0)
        assert step.num_accepted <= step.num_drafted
    return emitted


@pytest.mark.parametrize("depth", range(9))
@pytest.mark.parametrize("num_before", [0, 1, 2, 3, 7, 8, 19])
def test_stop_token_ends_emission_wherever_it_lies_in_a_run(depth: int, num_before: int) -> None:
    """B036, B037: nothing after the stop token is emitted, counted or left behind."""
    limits = TokenLimits(max_tokens=100, stop_token_ids=frozenset({num_before}))

    emitted = _run([23], limits, depth=depth)

    assert emitted.token_ids == list(range(num_before + 1))
    assert emitted.finish_reason is FinishReason.STOP
    assert emitted.steps[-1].matched_stop_token_id == num_before
    assert sum(step.num_accepted + 1 for step in emitted.steps) == num_before + 1


def test_first_of_several_stop_tokens_counts() -> None:
    """B037: several at once."""
    limits = TokenLimits(max_tokens=100, stop_token_ids=frozenset({9, 5, 17}))

    emitted = _run([23], limits, depth=8)

    assert emitted.token_ids == [0, 1, 2, 3, 4, 5]
    assert emitted.steps[-1].matched_stop_token_id == 5


def test_without_stop_tokens_the_drafted_end_is_a_token_like_any_other() -> None:
    """B036, B043: ignore_eos, or a model that has none."""
    following = {**CYCLE, 1: EOS, EOS: 2}

    emitted = _run([23], TokenLimits(max_tokens=6), depth=4, following=following)

    assert emitted.token_ids == [0, 1, EOS, 2, 3, 4]
    assert emitted.finish_reason is FinishReason.LENGTH


def test_rejected_end_token_ends_nothing() -> None:
    """B042: a drafted end that the target does not say; the session stays usable."""
    engine = StepEngine(WatchedTarget(CYCLE), CONFIG)
    harness = Harness(engine, lambda _: TokenTree.chain([EOS, 3]))
    stops = frozenset({EOS})
    harness.submit(Request(1, (23,), limits=TokenLimits(max_tokens=8, stop_token_ids=stops)))
    harness.run()

    emitted = harness.emitted[1]
    assert emitted.token_ids == list(range(8))
    assert all(step.num_drafted > 0 for step in emitted.steps[1:-1])
    assert sum(step.num_accepted for step in emitted.steps) == 0


@pytest.mark.parametrize("depth", [0, 1, 3, 5, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 12])
def test_max_tokens_is_met_exactly(depth: int, max_tokens: int) -> None:
    """B044: counted as emitted, not as drafted."""
    emitted = _run([23], TokenLimits(max_tokens=max_tokens), depth=depth)

    assert emitted.token_ids == list(range(max_tokens))
    assert emitted.finish_reason is FinishReason.LENGTH
    assert emitted.steps[-1].matched_stop_token_id is None


def test_stop_token_at_the_last_allowed_place_is_a_stop() -> None:
    limits = TokenLimits(max_tokens=4, stop_token_ids=frozenset({3}))

    for depth in (0, 2, 8):
        assert _run([23], limits, depth=depth).finish_reason is FinishReason.STOP


@pytest.mark.parametrize("depth", [0, 1, 4, 16])
def test_minimum_length_holds_within_a_run(depth: int) -> None:
    """The stop token is not chosen before; the choice after it differs then, drafted or not."""
    limits = TokenLimits(max_tokens=20, min_tokens=5, stop_token_ids=frozenset({2}))

    emitted = _run([23], limits, depth=depth)

    assert emitted.token_ids[:2] == [0, 1]
    assert 2 not in emitted.token_ids[:5]
    assert len(emitted.token_ids) > 5
    assert emitted.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 5, 16])
def test_context_end_is_met_exactly_and_never_passed(depth: int) -> None:
    """B039-B041: context 64, prompt 60: four tokens, and no row beyond the last position."""
    target = WatchedTarget(CYCLE, context_length=64)
    prompt = [token_id % 24 for token_id in range(60)]

    emitted = _run(prompt, TokenLimits(max_tokens=100), depth=depth, target=target)

    assert emitted.token_ids == [12, 13, 14, 15]
    assert emitted.finish_reason is FinishReason.LENGTH
    assert target.last_position <= 62


@pytest.mark.parametrize("prompt_len", range(54, 64))
def test_drafts_never_reach_beyond_the_context(prompt_len: int) -> None:
    """B040: for every prompt length near the limit."""
    target = WatchedTarget(CYCLE, context_length=64)
    prompt = [token_id % 24 for token_id in range(prompt_len)]

    emitted = _run(prompt, TokenLimits(max_tokens=100), depth=16, target=target)

    assert len(emitted.token_ids) == 64 - prompt_len
    assert target.last_position <= 62


def test_small_cache_bounds_the_context() -> None:
    """B056: a cache smaller than the model's context ends generation, it does not overflow."""
    config = replace(CONFIG, num_blocks=5, block_size=4)

    emitted = _run([23], TokenLimits(max_tokens=100), depth=8, config=config)

    assert len(emitted.token_ids) == 19
    assert emitted.finish_reason is FinishReason.LENGTH


def test_wide_tree_just_before_the_context_end_is_trimmed() -> None:
    """B047: width 8, depth 6, page size 16, ten tokens before the end."""
    target = WatchedTarget(CYCLE, context_length=64)
    config = replace(CONFIG, num_blocks=4, block_size=16, max_draft_tokens=64)
    engine = StepEngine(target, config)

    def wide(committed: Sequence[int]) -> TokenTree:
        truth = [CYCLE[(committed[-1] + step) % 24] for step in range(6)]
        token_ids: list[int] = []
        parents: list[int] = []
        parent = 0
        for token_id in truth:
            siblings = [(token_id + offset) % 24 for offset in range(7, -1, -1)]
            token_ids += siblings
            parents += [parent] * 8
            parent = len(token_ids)
        return TokenTree(tuple(token_ids), tuple(parents))

    harness = Harness(engine, wide)
    harness.submit(Request(1, tuple(i % 24 for i in range(54)), limits=TokenLimits(max_tokens=100)))
    harness.run()

    emitted = harness.emitted[1]
    assert emitted.token_ids == [i % 24 for i in range(6, 16)]
    assert emitted.finish_reason is FinishReason.LENGTH
    assert engine.blocks.num_in_use == 0


def test_emitted_tokens_count_towards_limits_after_a_resume() -> None:
    request = Request(1, (23,), (0, 1, 2), limits=TokenLimits(max_tokens=5))
    harness = Harness(StepEngine(WatchedTarget(CYCLE), CONFIG), _oracle(CYCLE, 4))

    harness.submit(request)
    harness.run()

    assert harness.emitted[1].token_ids == [3, 4]


def test_resume_of_a_complete_answer_ends_at_once() -> None:
    request = Request(1, (23,), (0, 1, 2), limits=TokenLimits(max_tokens=3))
    harness = Harness(StepEngine(WatchedTarget(CYCLE), CONFIG))

    harness.submit(request)
    harness.run()

    assert harness.emitted[1].token_ids == []
    assert harness.emitted[1].finish_reason is FinishReason.LENGTH


def test_figures_follow_the_published_definition() -> None:
    """B089-B091: the root is not drafted, the target's own token is not accepted."""
    emitted = _run([23], TokenLimits(max_tokens=41), depth=7)

    prefill, *steps, _ = emitted.steps
    assert prefill.is_prefill
    assert (prefill.num_drafted, prefill.num_accepted) == (0, 0)
    assert all((step.num_drafted, step.num_accepted) == (7, 7) for step in steps)
    assert not any(step.is_prefill for step in steps)
