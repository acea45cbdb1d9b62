"""
Paged tree attention for GPUs, in Triton: one program per tile of rows, key head and share of keys.

A row sees its context and the rows whose bits are set in its ancestor word. Sizes are static and
contexts are data, so that a captured graph serves every batch that fits it. ``attend_reference``
says the same in plain torch; the tests compare both, the kernel in Triton's interpreter.

Run so far: in the interpreter, on a CPU; compiled for sm_90. Not on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from verify_service.targets.row_buckets import TILE_ROWS

HEAD_DIMS = (16, 32, 64, 128, 256)
"""What the kernel is built for: powers of two that matrix units take."""
NUM_WARPS = 8
"""With 4 the compiler spills registers for 64 queries of 128 dimensions."""
MIN_DOT_ROWS = 16
MAX_TILE_ELEMENTS = 256 * 128
"""Queries of a tile times their dimensions: beyond it a tile outgrows a processor's memory."""


@dataclass(frozen=True, slots=True)
class KernelTraits:
    """What one attention layer asks for; the same in every step."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scaling: float
    softcap: float = 0.0
    """0: none."""
    window: int = 0
    """0: all of the context is seen."""

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_served(self) -> bool:
        """Whether the kernel can be built for these sizes."""
        is_even = self.num_heads % self.num_kv_heads == 0
        fits = self.tile_queries * self.head_dim <= MAX_TILE_ELEMENTS
        return self.head_dim in HEAD_DIMS and is_even and fits

    @property
    def tile_queries(self) -> int:
        """Queries of one tile and key head, a power of two."""
        wanted = max(TILE_ROWS * self.group, MIN_DOT_ROWS)
        return 1 << (wanted - 1).bit_length()

    @property
    def keys_per_step(self) -> int:
        """Keys looked at together; with 64 of them large tiles spill and compile for minutes."""
        is_large = self.head_dim > 128 or self.tile_queries * self.head_dim > 128 * 128
        return 32 if is_large else 64


@dataclass(frozen=True, slots=True)
class KernelInputs:
    """Device views of the packed integers; see ``tree_kernel_inputs``."""

    positions: torch.Tensor  # [num_rows]
    ancestors: torch.Tensor  # [num_rows]
    tile_span: torch.Tensor  # [num_tiles]
    tile_first: torch.Tensor  # [num_tiles]
    tile_rows: torch.Tensor  # [num_tiles]
    span_context: torch.Tensor  # [max_spans]
    span_first_row: torch.Tensor  # [max_spans]
    block_tables: torch.Tensor  # [max_spans, max_blocks]


@dataclass(frozen=True, slots=True)
class Partials:
    """What the shares of one layer hand to the merge; one set serves all layers."""

    outputs: torch.Tensor  # float32 [num_tiles, num_kv_heads, num_splits, tile_queries, head_dim]
    maxima: torch.Tensor  # float32 [num_tiles, num_kv_heads, num_splits, tile_queries]
    sums: torch.Tensor  # like maxima

    @classmethod
    def allocate(
        cls, traits: KernelTraits, num_tiles: int, num_splits: int, device: torch.device
    ) -> Partials:
        """Return buffers for layers with these traits."""
        shape = (num_tiles, traits.num_kv_heads, num_splits, traits.tile_queries)
        return cls(
            torch.empty((*shape, traits.head_dim), dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )


def attend(
    queries: torch.Tensor,  # [num_rows, num_heads, head_dim]
    keys: torch.Tensor,  # [num_slots, num_kv_heads, head_dim]
    values: torch.Tensor,  # like keys
    inputs: KernelInputs,
    traits: KernelTraits,
    partials: Partials,
    out: torch.Tensor,  # like queries
) -> None:
    """Write what each row of a tile attends to; rows outside of all tiles are left alone."""
    partial_kernel, merge_kernel = kernels()
    num_tiles, num_kv_heads, num_splits, tile_queries = partials.maxima.shape
    sizes = {
        "HEADS": traits.num_heads,
        "KV_HEADS": num_kv_heads,
        "GROUP": traits.group,
        "DIM": traits.head_dim,
        "QUERIES": tile_queries,
        "SPLITS": num_splits,
    }
    partial_kernel[(num_tiles, num_kv_heads, num_splits)](
        queries, keys, values,
        inputs.positions, inputs.ancestors,
        inputs.tile_span, inputs.tile_first, inputs.tile_rows,
        inputs.span_context, inputs.span_first_row, inputs.block_tables,
        partials.outputs, partials.maxima, partials.sums,
        traits.scaling, traits.softcap, inputs.block_tables.stride(0),
        BLOCK_SIZE=traits.block_size, KEYS=traits.keys_per_step, WINDOW=traits.window,
        HAS_SOFTCAP=traits.softcap > 0.0, num_warps=NUM_WARPS, **sizes,
    )  # fmt: skip
    merge_kernel[(num_tiles, num_kv_heads)](
        partials.outputs, partials.maxima, partials.sums,
        inputs.tile_span, inputs.tile_first, inputs.tile_rows, inputs.span_first_row,
        out, num_warps=NUM_WARPS, **sizes,
    )  # fmt: skip


@cache
def kernels() -> tuple[Any, Any]:
    """Return the compiled kernels; Triton is imported here and nowhere else."""
    from verify_service.targets import tree_kernel_source

    return tree_kernel_source.attend_partially, tree_kernel_source.merge_shares


def attend_reference(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    inputs: KernelInputs,
    traits: KernelTraits,
    out: torch.Tensor,
) -> None:
    """Do what ``attend`` does, row by row, in plain torch."""
    for tile in range(inputs.tile_rows.shape[0]):
        span, first = int(inputs.tile_span[tile]), int(inputs.tile_first[tile])
        base = int(inputs.span_first_row[span])
        for row in range(first, first + int(inputs.tile_rows[tile])):
            seen = _seen_indices(inputs, traits, span, base, row)
            blocks = inputs.block_tables[span][seen // traits.block_size]
            slots = blocks * traits.block_size + seen % traits.block_size
            out[base + row] = _attend_row(queries[base + row], keys[slots], values[slots], traits)


def _seen_indices(
    inputs: KernelInputs, traits: KernelTraits, span: int, base: int, row: int
) -> torch.Tensor:
    context = int(inputs.span_context[span])
    bits = int(inputs.ancestors[base + row])
    drafts = [index for index in range(row + 1) if bits >> index & 1]
    indices = torch.tensor([*range(context), *(context + index for index in drafts)])
    if not traits.window:
        return indices
    positions = torch.tensor(
        [*range(context), *(int(inputs.positions[base + index]) for index in drafts)]
    )
    return indices[int(inputs.positions[base + row]) - positions < traits.window]


def _attend_row(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, traits: KernelTraits
) -> torch.Tensor:
    grouped = query.float().view(traits.num_kv_heads, traits.group, traits.head_dim)
    scores = torch.einsum("hgd,nhd->hgn", grouped, keys.float()) * traits.scaling
    if traits.softcap:
        scores = traits.softcap * torch.tanh(scores / traits.softcap)
    mixed = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), values.float())
    return mixed.reshape(query.shape).to(query.dtype)
