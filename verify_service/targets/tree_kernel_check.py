"""Tries the tree kernel where it is to run: a fault there must cost speed, never a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verify_service.targets.packed_attention import Kernel
from verify_service.targets.row_buckets import RowBuckets
from verify_service.targets.static_inputs import views_of
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan
from verify_service.targets.tree_kernel import KernelTraits, Partials, attend_reference
from verify_service.targets.tree_kernel_inputs import ALIGNMENT, InputLayout, pack

MAX_DIFFERENCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.08}
"""Between sums of values of about 1; a wrong mask shows as tenths."""
MAX_CONTEXT = 4200
_SPANS = ((19, 1), (3, 0))
"""Rows, in two tiles and in one, and whether there is context before them."""


def kernel_fault(
    kernel: Kernel,
    traits: Sequence[KernelTraits],
    buckets: RowBuckets,
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """Return in what ``kernel`` fails or differs from its reference on a device; None: nothing."""
    for each in dict.fromkeys(traits):
        try:
            difference = _difference(kernel, each, buckets, dtype, device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers and drivers raise kinds of their own
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        if not difference <= MAX_DIFFERENCE[dtype]:
            sizes = f"{each.num_heads} heads over {each.num_kv_heads} of {each.head_dim}"
            return f"it computes something else with {sizes} (off by {difference:.2g})"
    return None


def _difference(
    kernel: Kernel,
    traits: KernelTraits,
    buckets: RowBuckets,
    dtype: torch.dtype,
    device: torch.device,
) -> float:
    """Return the largest difference over a batch of trees; the reference runs on the host."""
    batch = _batch(traits)
    num_slots = 1 + traits.block_size * sum(len(span.block_table) for span in batch.spans)
    shape = buckets.shape_for(batch.num_rows, 3)
    if shape is None:
        return 0.0
    generator = torch.Generator().manual_seed(5)
    kv_shape = (num_slots, traits.num_kv_heads, traits.head_dim)
    keys, values = (torch.randn(kv_shape, generator=generator).to(dtype) for _ in range(2))
    queries = torch.randn((shape.num_rows, traits.num_heads, traits.head_dim), generator=generator)
    queries = queries.to(dtype)
    longest = max(len(span.block_table) for span in batch.spans)
    layout = InputLayout(shape, len(batch.spans), -(-longest // ALIGNMENT) * ALIGNMENT)
    packed = np.zeros(layout.size, dtype=np.int64)
    pack(batch, layout, block_size=traits.block_size, spare_slot=num_slots - 1, out=packed)
    inputs = views_of(torch.from_numpy(packed), layout).kernel

    expected = torch.zeros_like(queries)
    attend_reference(queries, keys, values, inputs, traits, expected)
    out = torch.zeros_like(queries).to(device)
    partials = Partials.allocate(traits, shape.num_tiles, shape.num_splits, device)
    there = views_of(torch.from_numpy(packed).to(device), layout).kernel
    kernel(queries.to(device), keys.to(device), values.to(device), there, traits, partials, out)
    rows = batch.num_rows
    return float((out[:rows].cpu().float() - expected[:rows].float()).abs().max())


def _batch(traits: KernelTraits) -> FlatBatch:
    """Return trees behind contexts that end within a block and, where there is one, a window."""
    context = min(traits.window + 5, MAX_CONTEXT) if traits.window else 2 * traits.block_size + 5
    spans: list[RowSpan] = []
    first_block = 0
    for num_rows, has_context in _SPANS:
        context_len = context * has_context
        parents = tuple((row - 1) // 2 if row else CONTEXT for row in range(num_rows))
        depths = [0] * num_rows
        for row in range(1, num_rows):
            depths[row] = depths[parents[row]] + 1
        num_blocks = -(-(context_len + num_rows) // traits.block_size)
        blocks = range(first_block, first_block + num_blocks)
        first_block += num_blocks
        spans.append(
            RowSpan(
                token_ids=(0,) * num_rows,
                positions=tuple(context_len + depth for depth in depths),
                parents=parents,
                context_len=context_len,
                block_table=tuple(reversed(blocks)),
                logit_rows=(),
            )
        )
    return FlatBatch(tuple(spans))
