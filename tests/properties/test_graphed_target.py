"""
The torch target's accelerator path against its CPU path, row by row: packed inputs, padding,
recorded graphs and the tree kernel, the latter as its reference and in Triton's interpreter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, PretrainedConfig

from tests.doubles.graphed_targets import graphed_target
from tests.doubles.interpreter_run import needs_interpreter, needs_triton, run_inner_tests
from tests.doubles.recorded_graphs import RecordingGraphs
from tests.doubles.target_spans import (
    BLOCK_SIZE,
    SpanSource,
    random_block_table,
    random_tree,
    with_logit_rows,
)
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from verify_service.targets.packed_attention import Kernel, reference_kernel, triton_kernel
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan
from verify_service.targets.torch_model import TorchTarget

CPU = torch.device("cpu")
NUM_BLOCKS = 128
BLOCKS_PER_SEQUENCE = 40


def capped_config() -> PretrainedConfig:
    """Gemma 2, whose scores are capped, with heads that the kernel takes."""
    stated = CONFIGS["gemma2"].to_dict() | {"head_dim": 16}
    config: PretrainedConfig = Gemma2Config(**stated)
    return config


SHAPES = {"qwen3": CONFIGS["qwen3"], "gemma3": CONFIGS["gemma3"], "gemma2": capped_config()}


@dataclass(frozen=True, slots=True)
class Pair:
    """The same model on both paths; every batch goes through both."""

    graphed: TorchTarget
    plain: TorchTarget
    graphs: RecordingGraphs

    def assert_alike(self, *spans: RowSpan) -> None:
        ours = self.graphed.forward(FlatBatch(spans))
        torch.testing.assert_close(ours, self.plain.forward(FlatBatch(spans)), atol=2e-4, rtol=0)

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        for target in (self.graphed, self.plain):
            target.move_kv(sources, destinations)


def pair_of(name: str, folder: Path, kernel: Kernel) -> Pair:
    save_tiny_model(SHAPES[name], folder)
    graphs = RecordingGraphs()
    graphed = graphed_target(folder, graphs, kernel)
    plain = TorchTarget.load(folder, weights="float32", num_threads=1)
    for target in (graphed, plain):
        target.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)
    return Pair(graphed, plain, graphs)


@pytest.fixture(scope="module", params=list(SHAPES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_of(request.param, tmp_path_factory.mktemp(request.param), reference_kernel)


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


def sources_of(rng: random.Random, count: int) -> list[SpanSource]:
    free = list(range(NUM_BLOCKS))
    return [SpanSource(random_block_table(rng, free, BLOCKS_PER_SEQUENCE)) for _ in range(count)]


def tree(rng: random.Random, source: SpanSource, num_rows: int) -> RowSpan:
    return source.tree(tokens(rng, num_rows), random_tree(rng, num_rows))


def rounds(pair: Pair, rng: random.Random, num_rounds: int) -> None:
    """Verify trees of several sequences, each time committing a path whose KV is moved."""
    sources = sources_of(rng, 3)
    for source in sources:
        pair.assert_alike(source.chain(tokens(rng, rng.choice([1, 6, 17]))))
    for _ in range(num_rounds):
        spans = [tree(rng, source, rng.choice([1, 3, 7, 19])) for source in sources]
        pair.assert_alike(*spans)
        for source, span in zip(sources, spans, strict=True):
            commit(pair, rng, source, span)


def commit(pair: Pair, rng: random.Random, source: SpanSource, span: RowSpan) -> None:
    rows = [rng.randrange(span.num_rows)]
    while (parent := span.parents[rows[0]]) != CONTEXT:
        rows.insert(0, parent)
    first = len(source.stored)
    pair.move(
        [source.slot(first + row) for row in rows],
        [source.slot(first + place) for place in range(len(rows))],
    )
    source.stored.extend(span.token_ids[row] for row in rows)


@pytest.mark.parametrize("seed", range(2))
def test_every_row_in_a_graph_says_what_the_cpu_path_says(pair: Pair, seed: int) -> None:
    """B007, B012: sizes between captured ones, several trees in a batch, committed paths moved."""
    before = pair.graphs.num_replays

    rounds(pair, random.Random(seed), num_rounds=3)  # noqa: S311 - seeded on purpose

    assert pair.graphs.num_replays - before == 6


def test_a_long_prompt_runs_in_graphs_too(pair: Pair) -> None:
    """Its rows take more than one ancestor word; the tree behind it sees all of them."""
    rng = random.Random(3)  # noqa: S311 - seeded on purpose
    source = sources_of(rng, 1)[0]
    pair.assert_alike(source.chain(tokens(rng, 5)))
    prompt = source.tree(tokens(rng, 90), [*range(CONTEXT, 79), *[79, 79, 80, 80, 82] * 2])
    before = pair.graphs.num_replays

    pair.assert_alike(prompt)

    assert pair.graphs.num_replays == before + 1


def test_rows_whose_logits_nobody_wants_are_stored_all_the_same(pair: Pair) -> None:
    rng = random.Random(4)  # noqa: S311 - seeded on purpose
    source = sources_of(rng, 1)[0]
    chunk = with_logit_rows(source.chain(tokens(rng, 9)), [])

    pair.assert_alike(chunk)
    pair.assert_alike(tree(rng, source, 5))


def test_a_tree_beyond_the_kernel_runs_without_a_graph(pair: Pair) -> None:
    rng = random.Random(5)  # noqa: S311 - seeded on purpose
    source = sources_of(rng, 1)[0]
    pair.assert_alike(source.chain(tokens(rng, 7)))
    wide = source.tree(tokens(rng, 70), (CONTEXT,) * 70)
    before = pair.graphs.num_replays

    pair.assert_alike(wide)

    assert pair.graphs.num_replays == before


@needs_triton
@pytest.mark.timeout(400)
def test_the_triton_kernel_within_the_target_agrees_in_the_interpreter() -> None:
    run_inner_tests(__file__, num_tests=3)


@needs_interpreter
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(SHAPES))
def test_inner_triton_kernel_within_the_target(name: str, tmp_path: Path) -> None:
    kernel = triton_kernel(CPU)
    assert kernel is not None

    rounds(pair_of(name, tmp_path, kernel), random.Random(6), num_rounds=1)  # noqa: S311 as above
