"""The engine on transformers layers: sliding windows, blocks of rows, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from paceline.noise import mix64
from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Emitted, Harness, ProposeTree
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, WINDOW, save_tiny_model
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets.torch_model import TorchTarget

PROMPT = tuple(3 + mix64(index) % (VOCAB_SIZE - 3) for index in range(4))
NUM_TOKENS = 4 * WINDOW


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random model of which two layers see a few tokens only."""
    path = tmp_path_factory.mktemp("windowed")
    save_tiny_model(CONFIGS["gemma3"], path)
    return path


def _run(
    folder: Path,
    propose: ProposeTree | None = None,
    *,
    temperature: float = 0.0,
    max_prefill_rows: int = 64,
    prompt: tuple[int, ...] = PROMPT,
) -> Emitted:
    config = EngineConfig(
        num_blocks=64,
        block_size=4,
        max_prefill_rows=max_prefill_rows,
        budget=BudgetMode.FIXED,
        draft_pools=(POOL,),
    )
    harness = Harness(StepEngine(TorchTarget.load(folder, num_threads=1), config), propose)
    harness.submit(
        Request(
            1,
            prompt,
            sampling=SamplingParams(temperature=temperature, seed=3),
            limits=TokenLimits(NUM_TOKENS),
            num_logprobs=2,
        )
    )
    harness.run()
    return harness.emitted[1]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["right", "wrong", "in turn"])
def test_rejections_leave_nothing_in_a_sliding_window(
    folder: Path, kind: str, temperature: float
) -> None:
    """B001: before, at and after the window fills, while each round rejects something."""
    plain = _run(folder, temperature=temperature)
    truth = [*PROMPT, *plain.token_ids]

    def propose(committed: Sequence[int]) -> TokenTree:
        following = truth[len(committed) :][:3]
        wrong = [(token_id + 1) % VOCAB_SIZE for token_id in following]
        is_right = kind == "right" or (kind == "in turn" and len(committed) % 2 == 0)
        # Right ones end wrong, so that every round has something to take back.
        return TokenTree.chain([*following[:2], *wrong[2:]] if is_right else wrong)

    drafted = _run(folder, propose, temperature=temperature)

    assert drafted.token_ids == plain.token_ids
    assert drafted.logprobs == plain.logprobs
    num_accepted = sum(step.num_accepted for step in drafted.steps)
    assert (num_accepted > 0) == (kind != "wrong")


def test_one_block_of_rows_says_what_single_rows_say(folder: Path) -> None:
    """B005: the control without any drafter; kernels must not tell rows from blocks of rows."""
    generated = _run(folder)
    sequence = (*PROMPT, *generated.token_ids)

    singly = _run(folder, prompt=sequence, max_prefill_rows=1)
    at_once = _run(folder, prompt=sequence, max_prefill_rows=64)

    assert singly.token_ids == at_once.token_ids
    assert singly.logprobs == at_once.logprobs
