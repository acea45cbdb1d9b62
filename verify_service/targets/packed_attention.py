"""Attention of a captured step: every address and size is fixed, only what lies there changes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from verify_service.targets.attention_step import LayerTraits, ScoreArithmetic
from verify_service.targets.kv_cache import LayerKv, LayerShape
from verify_service.targets.row_buckets import GraphShape
from verify_service.targets.static_inputs import StepInputs
from verify_service.targets.tree_kernel import (
    KernelInputs,
    KernelTraits,
    Partials,
    attend,
    attend_reference,
)

Kernel: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, KernelInputs, KernelTraits, Partials, torch.Tensor],
    None,
]
"""``tree_kernel.attend``, or something that computes the same."""


def triton_kernel(device: torch.device) -> Kernel | None:
    """Return the Triton kernel where it can run: on CUDA, or in its interpreter."""
    if importlib.util.find_spec("triton") is None:
        return None
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return attend if device.type == "cuda" or is_interpreted else None


def reference_kernel(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    inputs: KernelInputs,
    traits: KernelTraits,
    partials: Partials,
    out: torch.Tensor,
) -> None:
    """Do what the kernel does, in plain torch, for where Triton does not run; slow."""
    del partials
    attend_reference(queries, keys, values, inputs, traits, out)


def kernel_traits(layers: Sequence[LayerTraits], block_size: int) -> tuple[KernelTraits, ...]:
    """Return what layers ask of the kernel."""
    return tuple(
        _traits(each.num_heads, each.shape, block_size, each.arithmetic, each.window)
        for each in layers
    )


class Workspace:
    """What the shares of a layer hand to the merge; one buffer for all layers and graphs."""

    def __init__(
        self, traits: Sequence[KernelTraits], shapes: Sequence[GraphShape], device: torch.device
    ) -> None:
        sizes = [_num_queries(each, shape) for each in set(traits) for shape in shapes]
        outputs = max(
            _num_queries(each, shape) * each.head_dim for each in set(traits) for shape in shapes
        )
        self._outputs = torch.empty(outputs, dtype=torch.float32, device=device)
        self._levels = torch.empty((2, max(sizes)), dtype=torch.float32, device=device)

    def partials(self, traits: KernelTraits, shape: GraphShape) -> Partials:
        """Return views for one layer of one graph."""
        sizes = (shape.num_tiles, traits.num_kv_heads, shape.num_splits, traits.tile_queries)
        count = _num_queries(traits, shape)
        return Partials(
            self._outputs[: count * traits.head_dim].view(*sizes, traits.head_dim),
            self._levels[0, :count].view(sizes),
            self._levels[1, :count].view(sizes),
        )


class PackedStep:
    """Stores the rows' KV and attends through the kernel."""

    def __init__(
        self,
        inputs: StepInputs,
        shape: GraphShape,
        block_size: int,
        workspace: Workspace,
        kernel: Kernel,
    ) -> None:
        self.inputs = inputs
        self._shape = shape
        self._block_size = block_size
        self._workspace = workspace
        self._kernel = kernel

    def attend(
        self,
        kv: LayerKv,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        arithmetic: ScoreArithmetic,
        window: int | None,
    ) -> torch.Tensor:
        """Return what each row attends to; 0 for rows that only pad the graph  # like queries."""
        kv.write(self.inputs.slots, keys, values)
        shape = LayerShape(keys.shape[1], keys.shape[2])
        traits = _traits(queries.shape[1], shape, self._block_size, arithmetic, window)
        partials = self._workspace.partials(traits, self._shape)
        result = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
        self._kernel(
            queries.contiguous(), kv.keys, kv.values, self.inputs.kernel, traits, partials, result
        )
        return result


def _traits(
    num_heads: int,
    shape: LayerShape,
    block_size: int,
    arithmetic: ScoreArithmetic,
    window: int | None,
) -> KernelTraits:
    return KernelTraits(
        num_heads=num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=block_size,
        scaling=arithmetic.scaling,
        softcap=arithmetic.softcap or 0.0,
        window=window or 0,
    )


def _num_queries(traits: KernelTraits, shape: GraphShape) -> int:
    programs = shape.num_tiles * traits.num_kv_heads * shape.num_splits
    return programs * traits.tile_queries
