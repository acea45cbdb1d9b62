"""Batches for the tree attention kernel, packed, with what its reference makes of them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.kv_cache import LayerShape, PagedKv
from verify_service.targets.row_buckets import RowBuckets, num_tiles_of
from verify_service.targets.static_inputs import views_of
from verify_service.targets.target import FlatBatch, RowSpan
from verify_service.targets.tree_attention import TreeAttention
from verify_service.targets.tree_kernel import (
    KernelInputs,
    KernelTraits,
    Partials,
    attend,
    attend_reference,
)
from verify_service.targets.tree_kernel_inputs import InputLayout, pack

CPU = torch.device("cpu")
BLOCK = 4
NUM_BLOCKS = 96
MAX_SPANS = 4
MAX_BLOCKS = 24


def span(rng: np.random.Generator, blocks: list[int], context: int, rows: int) -> RowSpan:
    """Return a random tree behind a context."""
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
    """Return trees over blocks in random order; ``shapes``: context and rows of each."""
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

    def __init__(
        self,
        seed: int,
        shapes: list[tuple[int, int]],
        traits: KernelTraits,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.batch = batch_of(seed, shapes)
        self.traits = traits
        generator = torch.Generator().manual_seed(seed)
        kv_shape = LayerShape(traits.num_kv_heads, traits.head_dim)
        self.kv = PagedKv(
            [kv_shape], NUM_BLOCKS, BLOCK, dtype=torch.float32, device=torch.device("cpu")
        ).layers[0]
        for rows in (self.kv.keys, self.kv.values):
            # Values that the type of the device holds, so that only sums differ there.
            rows.copy_(torch.randn(rows.shape, generator=generator).to(dtype))
        buckets = RowBuckets(256, MAX_SPANS, traits.num_kv_heads, num_processors=8)
        num_tiles = sum(num_tiles_of(each.num_rows) for each in self.batch.spans)
        shape = buckets.shape_for(self.batch.num_rows, num_tiles)
        assert shape is not None
        self.shape = shape
        layout = InputLayout(shape, MAX_SPANS, MAX_BLOCKS)
        packed = np.zeros(layout.size, dtype=np.int64)
        pack(self.batch, layout, block_size=BLOCK, spare_slot=NUM_BLOCKS * BLOCK, out=packed)
        self.layout, self.where, self.packed = layout, layout.slices(), packed
        queries = (shape.num_rows, traits.num_heads, traits.head_dim)
        self.queries = torch.randn(queries, generator=generator).to(dtype).float()
        self.dtype = dtype

    def inputs(self, device: torch.device = CPU) -> KernelInputs:
        """Return what the kernel reads."""
        return views_of(torch.from_numpy(self.packed).to(device), self.layout).kernel

    def reference(self) -> torch.Tensor:
        """Return what the reference computes, in float32."""
        out = torch.zeros_like(self.queries)
        attend_reference(
            self.queries, self.kv.keys, self.kv.values, self.inputs(), self.traits, out
        )
        return out

    def kernel(self, device: torch.device = CPU) -> torch.Tensor:
        """Return what the kernel computes on a device, in its type."""
        rows = (self.queries, self.kv.keys, self.kv.values)
        queries, keys, values = (each.to(device, self.dtype) for each in rows)
        out = torch.zeros_like(queries)
        partials = Partials.allocate(
            self.traits, self.shape.num_tiles, self.shape.num_splits, device
        )
        attend(queries, keys, values, self.inputs(device), self.traits, partials, out)
        return out.cpu().float()

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
