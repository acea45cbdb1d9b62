"""Attention of a step in torch's own operations, on any device; rows are not computed alike."""

from __future__ import annotations

import torch

from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.kv_cache import LayerKv
from verify_service.targets.step_plan import HeadGroups, RowTile, StepPlan


class TiledStep:
    """Attends tile by tile with torch's own operations, over rows of any number."""

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan

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
            _attend_tile(tile, kv, queries[rows], arithmetic, out=result[rows])
        return result


def _attend_tile(
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

    flat = _by_kv_head(queries, grouped).reshape(num_kv_heads, -1, head_dim) * arithmetic.scaling
    scores = torch.bmm(flat, _keys(tile, kv).permute(1, 2, 0)).float()
    _cap_and_mask(scores.view(*grouped, -1), tile, arithmetic)
    weights = scores.softmax(-1).to(queries.dtype)
    values = kv.values[tile.key_slots].transpose(0, 1)
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
