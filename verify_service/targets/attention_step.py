"""What an attention layer asks for, and what serves it during a step. No arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from verify_service.targets.kv_cache import LayerKv, LayerShape


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
