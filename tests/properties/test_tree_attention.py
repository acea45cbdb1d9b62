from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedModel

from tests.doubles.target_spans import (
    BLOCK_SIZE,
    SpanSource,
    path_rows,
    random_block_table,
    random_tree,
)
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from verify_service.targets.packed_linear import Packing
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan
from verify_service.targets.torch_model import TorchTarget

NUM_BLOCKS = 96
BLOCKS_PER_SEQUENCE = 20
KINDS: tuple[tuple[str, Packing], ...] = (
    *((name, "packed-fp16") for name in CONFIGS),
    ("llama", "float32"),
    ("gemma3", "float32"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the plain transformers model with the same weights."""

    target: TorchTarget
    plain: PreTrainedModel

    def plain_logits(self, token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.plain(torch.tensor([token_ids])).logits[0]
        return logits

    def logits(self, *spans: RowSpan) -> torch.Tensor:
        return self.target.forward(FlatBatch(spans))


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, packing = request.param
    folder = tmp_path_factory.mktemp(name)
    plain = save_tiny_model(CONFIGS[name], folder)
    target = TorchTarget.load(folder, weights=packing, num_threads=1)
    target.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)
    return Pair(target, plain)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20)  # noqa: S311 - seeded on purpose


@pytest.fixture
def new_source(rng: random.Random) -> Callable[[], SpanSource]:
    free = list(range(NUM_BLOCKS))
    return lambda: SpanSource(random_block_table(rng, free, BLOCKS_PER_SEQUENCE))


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


def prefill(pair: Pair, source: SpanSource, token_ids: list[int]) -> None:
    if token_ids:
        pair.logits(source.chain(token_ids))


def rows_of(span: RowSpan) -> Iterator[tuple[int, list[int]]]:
    """Each row with the tokens from the context down to it."""
    for row in range(span.num_rows):
        yield row, [span.token_ids[other] for other in path_rows(span, row)]


@pytest.mark.parametrize("seed", range(3))
def test_every_row_says_what_plain_transformers_says_over_its_root_path(
    pair: Pair, new_source: Callable[[], SpanSource], seed: int
) -> None:
    """B007, B011: rejected nodes and siblings too, in a batch of several sequences."""
    rng = random.Random(seed)  # noqa: S311 - seeded on purpose
    sources = [new_source() for _ in range(3)]
    for source in sources:
        prefill(pair, source, tokens(rng, rng.choice([0, 1, 5, 17, 30])))
    spans = [
        source.tree(tokens(rng, count), random_tree(rng, count))
        for source in sources
        for count in [rng.choice([1, 2, 7, 13])]
    ]

    logits = iter(pair.logits(*spans))

    for source, span in zip(sources, spans, strict=True):
        for _, path in rows_of(span):
            expected = pair.plain_logits(source.stored + path)[-1]
            torch.testing.assert_close(next(logits), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_row_has_the_same_bits_in_a_tree_and_decoded_token_by_token(
    pair: Pair, new_source: Callable[[], SpanSource], seed: int
) -> None:
    """B004, B009: whatever else is in the batch, wherever the blocks lie, however often drafted."""
    rng = random.Random(seed)  # noqa: S311 - seeded on purpose
    prompt = tokens(rng, rng.choice([1, 6, 14, 23, 31]))
    num_rows = rng.choice([5, 9, 16, 24])
    drafted, other, plain = new_source(), new_source(), new_source()
    prefill(pair, drafted, prompt)
    prefill(pair, other, tokens(rng, 19))
    tree = drafted.tree(tokens(rng, num_rows), random_tree(rng, num_rows))
    neighbour = other.tree(tokens(rng, 3), random_tree(rng, 3))

    in_tree = pair.logits(neighbour, tree)[3:]

    for row, path in rows_of(tree):
        plain.stored.clear()
        for token_id in prompt + path:
            decoded = pair.logits(plain.chain([token_id]))
        assert torch.equal(decoded[0], in_tree[row])


def test_chunked_prefill_has_the_same_bits_as_whole_prefill(
    pair: Pair, new_source: Callable[[], SpanSource], rng: random.Random
) -> None:
    prompt = tokens(rng, 61)
    whole, chunked = new_source(), new_source()

    at_once = pair.logits(whole.chain(prompt))
    in_chunks = [pair.logits(chunked.chain(prompt[i : i + 7])) for i in range(0, 61, 7)]

    assert torch.equal(torch.cat(in_chunks), at_once)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 8, 9, 13, 17, 24])
def test_chain_of_any_depth_crosses_block_borders_unharmed(
    pair: Pair, new_source: Callable[[], SpanSource], rng: random.Random, depth: int
) -> None:
    """B008: blocks of 4 tokens, drafts over none, one and many borders."""
    prompt, drafted = tokens(rng, 7), tokens(rng, depth)
    source = new_source()
    prefill(pair, source, prompt)

    logits = pair.logits(source.chain(drafted))

    expected = pair.plain_logits(prompt + drafted)[-depth:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_path_of_last_siblings_moved_into_place_equals_a_fresh_prefill(
    pair: Pair, new_source: Callable[[], SpanSource], rng: random.Random
) -> None:
    """B049: the accepted nodes are scattered over the tree; later steps read them as context."""
    prompt, next_token = tokens(rng, 10), tokens(rng, 1)
    drafted, fresh = new_source(), new_source()
    prefill(pair, drafted, prompt)
    tree = drafted.tree(tokens(rng, 10), (CONTEXT, 0, 0, 0, 3, 3, 3, 6, 6, 6))
    pair.logits(tree)
    accepted = path_rows(tree, 9)
    first = len(prompt)

    pair.target.move_kv(
        [drafted.slot(first + row) for row in accepted],
        [drafted.slot(first + depth) for depth in range(len(accepted))],
    )
    drafted.stored += [tree.token_ids[row] for row in accepted]
    continued = pair.logits(drafted.chain(next_token))

    prefill(pair, fresh, drafted.stored[:-1])
    assert torch.equal(continued, pair.logits(fresh.chain(next_token)))


def test_sequence_that_turns_nan_leaves_its_neighbour_alone(
    pair: Pair, new_source: Callable[[], SpanSource], rng: random.Random
) -> None:
    """NaN passes through to its own logits; freed blocks full of it harm nobody."""
    poisoned, healthy = new_source(), new_source()
    prompt = tokens(rng, 9)
    for layer in pair.target._attention.cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    poisoned.stored += tokens(rng, 9)
    prefill(pair, healthy, prompt)

    logits = pair.logits(poisoned.chain([3]), healthy.chain([3]))

    assert logits[0].isnan().all()
    torch.testing.assert_close(logits[1], pair.plain_logits([*prompt, 3])[-1], atol=1e-4, rtol=0)
