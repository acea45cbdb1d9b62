"""
Attention by ancestors over the paged KV, registered with transformers as ``paceline_tree``.

In float32 on CPU a row's output depends, bit for bit, only on the keys that it sees, in order:

- scores: a dot product runs over the head dimension alone, and with queries and keys rounded up
  to whole columns the matrix kernel adds it up the same way wherever it stands;
- maximum: exact in any order;
- exponentials: elementwise, the same in vector and scalar code;
- their sum (``cumsum``) and the weighted sum of the values (``embedding_bag``): strictly
  sequential over the keys, so that a masked key, whose weight is 0, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from transformers import AttentionInterface, PreTrainedModel

from paceline.errors import EngineFailed
from verify_service.targets.kv_cache import LayerKv, LayerShape, PagedKv
from verify_service.targets.step_plan import COLUMNS, HeadGroups, RowTile, StepPlan
from verify_service.targets.target import FlatBatch

ATTENTION_NAME = "paceline_tree"

_SUM = 0  # embedding_bag's mode


@dataclass(frozen=True, slots=True)
class ScoreArithmetic:
    """What a layer does to a dot product before the softmax."""

    scaling: float
    softcap: float | None


@dataclass(frozen=True, slots=True)
class LayerTraits:
    """What one attention layer asks for, the same in every step."""

    layer: int
    num_heads: int
    shape: LayerShape
    arithmetic: ScoreArithmetic
    window: int | None


class StepAttention(Protocol):
    """How the rows of the step under way attend in one layer."""

    def attend(
        self,
        kv: LayerKv,
        queries: torch.Tensor,  # [num_rows (padded), num_heads, head_dim]
        keys: torch.Tensor,  # [num_rows (padded), num_kv_heads, head_dim]
        values: torch.Tensor,  # like keys
        arithmetic: ScoreArithmetic,
        window: int | None,
    ) -> torch.Tensor:
        """Store the rows' KV and return what each row attends to  # like queries."""
        ...


class TiledStep:
    """Attends tile by tile with torch's own operations, over rows of any number."""

    def __init__(self, plan: StepPlan, *, exact: bool) -> None:
        self._plan = plan
        self._attend_tile = attend_exactly if exact else attend_fast

    def attend(
        self,
        kv: LayerKv,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        arithmetic: ScoreArithmetic,
        window: int | None,
    ) -> torch.Tensor:
        """Store the rows' KV and return what each row attends to  # like queries."""
        plan = self._plan
        num_rows = plan.slots.shape[0]
        kv.write(plan.slots, keys[:num_rows], values[:num_rows])
        num_heads, num_kv_heads = queries.shape[1], keys.shape[1]
        heads = HeadGroups(num_kv_heads, num_heads // num_kv_heads, window)
        result = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
        for tile in plan.tiles(heads):
            rows = slice(tile.first_row, tile.first_row + tile.num_rows)
            self._attend_tile(tile, kv, queries[rows], arithmetic, out=result[rows])
        return result


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
        plan = StepPlan(batch, self.cache.block_size, self.device, with_bags=self._exact)
        self._step = TiledStep(plan, exact=self._exact)

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


def attend_exactly(
    tile: RowTile,
    kv: LayerKv,
    queries: torch.Tensor,
    arithmetic: ScoreArithmetic,
    out: torch.Tensor,
) -> None:
    """Write what the rows of ``tile`` attend to  # queries, out: [num_rows, heads, head_dim]."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = kv.keys.shape[1]
    grouped = (num_kv_heads, num_rows, num_heads // num_kv_heads)
    num_queries = num_rows * grouped[2]  # per key head

    columns = queries.new_zeros((num_kv_heads, -(-num_queries // COLUMNS) * COLUMNS, head_dim))
    torch.mul(
        _by_kv_head(queries, grouped),
        arithmetic.scaling,
        out=columns[:, :num_queries].view(*grouped, head_dim),
    )
    weights = torch.bmm(columns, _keys(tile, kv).permute(1, 2, 0))
    # Past num_keys lies what others left there, NaN perhaps; it is cut off, not masked.
    weights = weights[:, :num_queries, : tile.num_keys]
    _cap_and_mask(weights.view(*grouped, tile.num_keys), tile, arithmetic)
    weights.sub_(weights.amax(-1, keepdim=True)).exp_()
    total = weights.cumsum(-1)[..., -1]
    bags = torch.embedding_bag(
        kv.values.view(-1, head_dim),
        tile.bag_indices,
        tile.bag_offsets,
        mode=_SUM,
        per_sample_weights=weights.reshape(-1),
    )[0]
    torch.div(
        bags.view(*grouped, head_dim),
        total.reshape(*grouped, 1),
        out=_by_kv_head(out, grouped),
    )


def attend_fast(
    tile: RowTile,
    kv: LayerKv,
    queries: torch.Tensor,
    arithmetic: ScoreArithmetic,
    out: torch.Tensor,
) -> None:
    """Do what ``attend_exactly`` does with matrix products alone, for accelerators."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = kv.keys.shape[1]
    grouped = (num_kv_heads, num_rows, num_heads // num_kv_heads)

    flat = _by_kv_head(queries, grouped).reshape(num_kv_heads, -1, head_dim) * arithmetic.scaling
    scores = torch.bmm(flat, _keys(tile, kv).permute(1, 2, 0))[..., : tile.num_keys].float()
    _cap_and_mask(scores.view(*grouped, tile.num_keys), tile, arithmetic)
    weights = scores.softmax(-1).to(queries.dtype)
    values = kv.values[tile.key_slots].transpose(0, 1)[:, : tile.num_keys]
    _by_kv_head(out, grouped).copy_(torch.bmm(weights, values).view(*grouped, head_dim))


def _by_kv_head(rows: torch.Tensor, grouped: tuple[int, int, int]) -> torch.Tensor:
    """View [num_rows, heads, head_dim] as [kv_heads, num_rows, queries per kv head, head_dim]."""
    return rows.view(grouped[1], grouped[0], grouped[2], -1).transpose(0, 1)


def _keys(tile: RowTile, kv: LayerKv) -> torch.Tensor:
    if isinstance(tile.key_slots, slice):
        return kv.keys[tile.key_slots]
    return kv.keys.index_select(0, tile.key_slots)


def _cap_and_mask(scores: torch.Tensor, tile: RowTile, arithmetic: ScoreArithmetic) -> None:
    if arithmetic.softcap is not None:
        scores.div_(arithmetic.softcap).tanh_().mul_(arithmetic.softcap)
    scores.add_(tile.mask)


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
