"""On a GPU: the torch target in graphs, row by row against the CPU, as the CPU tests do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.doubles.target_spans import BLOCK_SIZE, SpanSource, random_tree
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from verify_service.targets.device_choice import Weights
from verify_service.targets.target import FlatBatch
from verify_service.targets.torch_model import TorchTarget

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NUM_BLOCKS = 64
TOLERANCE: dict[Weights, float] = {"float32": 2e-3, "float16": 0.05, "bfloat16": 0.3}


def loaded(folder: Path, device: str, weights: Weights) -> TorchTarget:
    target = TorchTarget.load(folder, device=device, weights=weights)
    target.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)
    return target


@pytest.mark.parametrize("weights", list(TOLERANCE))
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_every_row_says_what_the_cpu_says(name: str, weights: Weights, tmp_path: Path) -> None:
    """B007, B012: chains, trees, moved paths and sizes between captured ones."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    save_tiny_model(CONFIGS[name], tmp_path)
    targets = [loaded(tmp_path, "cuda", weights), loaded(tmp_path, "cpu", "float32")]
    rng = random.Random(3)  # noqa: S311 - seeded on purpose
    source = SpanSource(tuple(rng.sample(range(NUM_BLOCKS), 40)))
    batches = [FlatBatch((source.chain([rng.randrange(VOCAB_SIZE) for _ in range(70)]),))]
    for num_rows in (1, 3, 17, 33):
        tokens = [rng.randrange(VOCAB_SIZE) for _ in range(num_rows)]
        batches.append(FlatBatch((source.tree(tokens, random_tree(rng, num_rows)),)))
        source.stored.append(tokens[0])

    for batch in batches:
        ours, theirs = (target.forward(batch).cpu() for target in targets)
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE[weights] * scale, rtol=0)


def test_a_moved_path_is_read_where_it_was_moved_to(tmp_path: Path) -> None:
    """B049: moves are gathered and made before the next step reads."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    save_tiny_model(CONFIGS["qwen3"], tmp_path)
    target = loaded(tmp_path, "cuda", "float32")
    source = SpanSource(tuple(range(40)))
    target.forward(FlatBatch((source.chain([3, 4, 5]),)))
    plain = target.forward(FlatBatch((source.tree([7, 8], (-1, 0)),)))[1].clone()

    target.forward(FlatBatch((source.tree([6, 7], (-1, -1)),)))
    target.move_kv([source.slot(4)], [source.slot(3)])
    source.stored.append(7)
    moved = target.forward(FlatBatch((source.chain([8]),)))[0]

    torch.testing.assert_close(moved, plain, atol=2e-3, rtol=0)
