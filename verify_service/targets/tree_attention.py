"""Attention by ancestors over the paged KV, registered with transformers as ``paceline_tree``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from transformers import AttentionInterface, PreTrainedModel

from paceline.errors import EngineFailed
from verify_service.targets.attention_step import LayerTraits, ScoreArithmetic, StepAttention
from verify_service.targets.kv_cache import LayerShape, PagedKv
from verify_service.targets.row_attention import RowStep
from verify_service.targets.step_plan import StepPlan
from verify_service.targets.target import FlatBatch
from verify_service.targets.tiled_attention import TiledStep

ATTENTION_NAME = "paceline_tree"


class TreeAttention:
    """The attention of one model: its cache and the step under way."""

    def __init__(self, dtype: torch.dtype, device: torch.device, *, exact: bool) -> None:
        self.dtype = dtype
        self.device = device
        self._exact = exact
        self._cache: PagedKv | None = None
        self._step: StepAttention | None = None
        self._measured: dict[int, LayerTraits] | None = None

    @property
    def cache(self) -> PagedKv:
        """The KV cache."""
        if self._cache is None:
            raise EngineFailed("the KV cache of the target is not allocated")
        return self._cache

    def allocate(self, shapes: Sequence[LayerShape], num_blocks: int, block_size: int) -> None:
        """Replace the KV cache by an empty one."""
        self._cache = None  # frees the old one first
        self._cache = PagedKv(shapes, num_blocks, block_size, dtype=self.dtype, device=self.device)

    @contextmanager
    def measuring(self) -> Iterator[dict[int, LayerTraits]]:
        """
        Note what layers ask for, and compute no attention meanwhile.

        A row then gets the sum of its query, key and value: what a layer does to them shows.
        """
        self._measured = {}
        try:
            yield self._measured
        finally:
            self._measured = None

    def begin(self, batch: FlatBatch) -> None:
        """Serve the rows of ``batch`` in the forward pass that follows."""
        block_size = self.cache.block_size
        if self._exact:
            self._step = RowStep(batch, block_size)
        else:
            self._step = TiledStep(StepPlan(batch, block_size, self.device))

    def serve(self, step: StepAttention) -> None:
        """Attend through ``step`` in the forward pass that follows."""
        self._step = step

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,  # [num_rows (padded), num_heads, head_dim]
        keys: torch.Tensor,  # [num_rows (padded), num_kv_heads, head_dim]
        values: torch.Tensor,  # like keys
        arithmetic: ScoreArithmetic,
        window: int | None,
    ) -> torch.Tensor:
        """Store the rows' KV and return what each row attends to  # like queries."""
        if self._measured is not None:
            shape = LayerShape(keys.shape[1], keys.shape[2])
            self._measured[layer] = LayerTraits(layer, queries.shape[1], shape, arithmetic, window)
            repeats = queries.shape[1] // keys.shape[1]
            return queries + (keys + values).repeat_interleave(repeats, dim=1)
        if self._step is None:
            raise EngineFailed("attention outside of a step")
        return self._step.attend(
            self.cache.layers[layer], queries, keys, values, arithmetic, window
        )


class _AttentionModule(Protocol):
    layer_idx: int
    paceline_attention: TreeAttention


def attach(model: PreTrainedModel, attention: TreeAttention) -> None:
    """Make ``model`` attend through ``attention``, and through nothing else."""
    AttentionInterface.register(ATTENTION_NAME, _registered)
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            cast("_AttentionModule", module).paceline_attention = attention
    model.set_attn_implementation(ATTENTION_NAME)


def _registered(
    module: _AttentionModule,
    query: torch.Tensor,  # [1, num_heads, num_rows, head_dim]
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Stand in for a transformers attention function; ``attention_mask`` is never built."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    result = module.paceline_attention.attend(
        module.layer_idx,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        ScoreArithmetic(scale, softcap),
        sliding_window,
    )
    return result[None], None
