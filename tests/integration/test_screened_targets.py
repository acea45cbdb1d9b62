"""Models whose output head is screened say what they say with all logits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from transformers import PretrainedConfig

from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Emitted, Harness, ProposeTree
from tests.doubles.target_spans import BLOCK_SIZE, SpanSource, random_tree
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets import screened_head, screening_kernel
from verify_service.targets.target import FlatBatch
from verify_service.targets.torch_model import TorchTarget

pytestmark = pytest.mark.skipif(
    not screening_kernel.multiplies_bf16(), reason="needs a CPU with AVX512_BF16"
)
WITH_BARE_HEAD = sorted(set(CONFIGS) - {"gemma2"})
"""Gemma 2 caps its logits after the head."""


@pytest.fixture(autouse=True)
def small_heads_are_screened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screen what is too small to gain by it."""
    monkeypatch.setattr(screened_head, "_WORTH_SCREENING", 0)


def loaded(config: PretrainedConfig, folder: Path) -> TorchTarget:
    save_tiny_model(config, folder)
    return TorchTarget.load(folder, num_threads=2)


@pytest.mark.parametrize("name", WITH_BARE_HEAD)
def test_best_tokens_are_those_of_all_logits(name: str, tmp_path: Path) -> None:
    """Of chunks, trees and several sequences; what is stored is the same, too."""
    target, rng = loaded(CONFIGS[name], tmp_path), random.Random(5)  # noqa: S311 - seeded
    target.allocate_kv(40, BLOCK_SIZE)

    def said(ask: Callable[[FlatBatch], Sequence[int | None] | None]) -> list[object]:
        rng.seed(5)
        sources = [SpanSource(tuple(range(start, start + 10))) for start in (0, 10, 20)]
        answers: list[object] = []
        for _ in range(3):
            tokens = [rng.randrange(VOCAB_SIZE) for _ in range(9)]
            answers.append(ask(FlatBatch(tuple(each.chain(tokens[:3]) for each in sources))))
            trees = [each.tree(tokens, random_tree(rng, 9)) for each in sources]
            answers.append(ask(FlatBatch(tuple(trees))))
        return answers

    best = said(target.best_tokens)

    assert best == said(lambda batch: target.forward(batch).argmax(dim=1).tolist())
    assert None not in best


def test_logits_that_change_after_the_head_are_all_computed(tmp_path: Path) -> None:
    target = loaded(CONFIGS["gemma2"], tmp_path)
    target.allocate_kv(8, BLOCK_SIZE)

    assert target.best_tokens(FlatBatch((SpanSource((1, 2)).chain([3, 4]),))) is None


def run(folder: Path, propose: ProposeTree | None, num_logprobs: int | None) -> Emitted:
    target = TorchTarget.load(folder, num_threads=1)
    config = EngineConfig(num_blocks=64, block_size=4, budget=BudgetMode.FIXED, draft_pools=(POOL,))
    harness = Harness(StepEngine(target, config), propose)
    harness.submit(
        Request(
            1,
            (5, 7, 11, 40),
            sampling=SamplingParams(),
            limits=TokenLimits(40),
            num_logprobs=num_logprobs,
        )
    )
    harness.run()
    return harness.emitted[1]


def test_drafting_over_a_screened_head_changes_no_token(tmp_path: Path) -> None:
    save_tiny_model(CONFIGS["gemma3"], tmp_path)
    with_logits = run(tmp_path, None, num_logprobs=1)
    truth = [5, 7, 11, 40, *with_logits.token_ids]

    def propose(committed: Sequence[int]) -> TokenTree:
        following = truth[len(committed) :][:4]
        return TokenTree.chain([*following[:-1], *((each + 1) % 131 for each in following[-1:])])

    plain, drafted = run(tmp_path, None, None), run(tmp_path, propose, None)

    assert plain.token_ids == drafted.token_ids == with_logits.token_ids
    assert sum(step.num_accepted for step in drafted.steps) > 20
