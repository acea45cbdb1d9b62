"""
Paged tree attention for GPUs: packing and reference against the CPU's attention, and the Triton
kernel, in Triton's interpreter, against the reference. Where ``triton`` is missing (CPU-only builds
of torch) the last part is skipped.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.interpreter_run import needs_interpreter, needs_triton, run_inner_tests
from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.kv_cache import LayerShape, PagedKv
from verify_service.targets.row_buckets import MAX_SPAN_ROWS, RowBuckets, num_tiles_of
from verify_service.targets.target import FlatBatch, RowSpan
from verify_service.targets.tree_attention import TreeAttention
from verify_service.targets.tree_kernel import (
    KernelInputs,
    KernelTraits,
    Partials,
    attend,
    attend_reference,
)
from verify_service.targets.tree_kernel_inputs import InputLayout, ancestor_bits, pack

BLOCK = 4
NUM_BLOCKS = 96
MAX_SPANS = 4
MAX_BLOCKS = 24


def span(rng: np.random.Generator, blocks: list[int], context: int, rows: int) -> RowSpan:
    parents = [-1, *(int(rng.integers(-1, row)) for row in range(1, rows))]
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return RowSpan(
        token_ids=tuple(int(t) for t in rng.integers(0, 50, rows)),
        positions=tuple(context + depth for depth in depths),
        parents=tuple(parents),
        context_len=context,
        block_table=tuple(blocks[: -(-(context + rows) // BLOCK)]),
        logit_rows=tuple(range(rows)),
    )


def batch_of(seed: int, shapes: list[tuple[int, int]]) -> FlatBatch:
    rng = np.random.default_rng(seed)
    blocks = [int(block) for block in rng.permutation(NUM_BLOCKS)]
    return FlatBatch(
        tuple(
            span(rng, blocks[i * MAX_BLOCKS : (i + 1) * MAX_BLOCKS], context, rows)
            for i, (context, rows) in enumerate(shapes)
        )
    )


class Case:
    """One batch with random queries and KV, packed for the kernel."""

    def __init__(self, seed: int, shapes: list[tuple[int, int]], traits: KernelTraits) -> None:
        self.batch = batch_of(seed, shapes)
        self.traits = traits
        generator = torch.Generator().manual_seed(seed)
        kv_shape = LayerShape(traits.num_kv_heads, traits.head_dim)
        self.kv = PagedKv(
            [kv_shape], NUM_BLOCKS, BLOCK, dtype=torch.float32, device=torch.device("cpu")
        ).layers[0]
        self.kv.keys.copy_(torch.randn(self.kv.keys.shape, generator=generator))
        self.kv.values.copy_(torch.randn(self.kv.values.shape, generator=generator))
        buckets = RowBuckets(256, MAX_SPANS, traits.num_kv_heads, num_processors=8)
        num_tiles = sum(num_tiles_of(each.num_rows) for each in self.batch.spans)
        shape = buckets.shape_for(self.batch.num_rows, num_tiles)
        assert shape is not None
        self.shape = shape
        layout = InputLayout(shape, MAX_SPANS, MAX_BLOCKS)
        packed = np.zeros(layout.size, dtype=np.int64)
        pack(self.batch, layout, block_size=BLOCK, spare_slot=NUM_BLOCKS * BLOCK, out=packed)
        self.where, self.packed = layout.slices(), packed
        self.queries = torch.randn(
            (shape.num_rows, traits.num_heads, traits.head_dim), generator=generator
        )

    def inputs(self) -> KernelInputs:
        def part(name: str) -> torch.Tensor:
            return torch.from_numpy(self.packed[self.where[name]])

        return KernelInputs(
            positions=part("positions"),
            ancestors=part("ancestors"),
            tile_span=part("tile_span"),
            tile_first=part("tile_first"),
            tile_rows=part("tile_rows"),
            span_context=part("span_context"),
            span_first_row=part("span_first_row"),
            block_tables=part("block_tables").view(MAX_SPANS, MAX_BLOCKS),
        )

    def reference(self) -> torch.Tensor:
        out = torch.zeros_like(self.queries)
        attend_reference(
            self.queries, self.kv.keys, self.kv.values, self.inputs(), self.traits, out
        )
        return out

    def kernel(self) -> torch.Tensor:
        out = torch.zeros_like(self.queries)
        partials = Partials.allocate(
            self.traits, self.shape.num_tiles, self.shape.num_splits, out.device
        )
        attend(
            self.queries, self.kv.keys, self.kv.values, self.inputs(), self.traits, partials, out
        )
        return out

    def on_cpu(self) -> torch.Tensor:
        """What the CPU path computes for the same rows, whose KV it stores itself first."""
        traits, rows = self.traits, self.batch.num_rows
        attention = TreeAttention(torch.float32, torch.device("cpu"), exact=True)
        attention.allocate([LayerShape(traits.num_kv_heads, traits.head_dim)], NUM_BLOCKS, BLOCK)
        kv = attention.cache.layers[0]
        kv.keys.copy_(self.kv.keys)
        kv.values.copy_(self.kv.values)
        attention.begin(self.batch)
        slots = torch.from_numpy(self.packed[self.where["slots"]][:rows])
        return attention.attend(
            0,
            self.queries[:rows],
            self.kv.keys[slots],
            self.kv.values[slots],
            ScoreArithmetic(traits.scaling, traits.softcap or None),
            traits.window or None,
        )


SHAPES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 24)), min_size=1, max_size=MAX_SPANS)
TRAITS = st.builds(
    KernelTraits,
    num_heads=st.just(4),
    num_kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.just(16),
    block_size=st.just(BLOCK),
    scaling=st.just(0.25),
    softcap=st.sampled_from([0.0, 5.0]),
    window=st.sampled_from([0, 7]),
)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), shapes=SHAPES, traits=TRAITS)
def test_the_reference_attends_as_the_cpu_does(
    seed: int, shapes: list[tuple[int, int]], traits: KernelTraits
) -> None:
    case = Case(seed, shapes, traits)
    rows = case.batch.num_rows

    torch.testing.assert_close(case.reference()[:rows], case.on_cpu(), rtol=1e-4, atol=1e-5)


def test_padding_rows_touch_nothing() -> None:
    case = Case(1, [(5, 5)], KernelTraits(4, 2, 16, BLOCK, 0.25))
    spare = case.packed[case.where["slots"]][case.batch.num_rows :]

    assert case.shape.num_rows == 8
    assert set(spare.tolist()) == {NUM_BLOCKS * BLOCK}
    assert not case.reference()[5:].any()


def test_the_last_of_64_rows_keeps_its_sign_bit() -> None:
    rows = MAX_SPAN_ROWS
    chain = RowSpan((1,) * rows, tuple(range(rows)), tuple(range(-1, rows - 1)), 0, (0,), ())

    assert int(ancestor_bits(chain)[-1]) == -1


@needs_triton
@pytest.mark.timeout(300)
def test_the_kernel_agrees_with_the_reference_in_the_interpreter() -> None:
    run_inner_tests(__file__, num_tests=1)


@needs_interpreter
@pytest.mark.timeout(240)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**16), shapes=SHAPES, traits=TRAITS)
def test_inner_kernel_equals_reference(
    seed: int, shapes: list[tuple[int, int]], traits: KernelTraits
) -> None:
    case = Case(seed, shapes, traits)

    torch.testing.assert_close(case.kernel(), case.reference(), rtol=1e-4, atol=1e-5)
