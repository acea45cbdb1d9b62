"""The norm and the rotation of query and key heads, in the fewest operations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch.nn import functional

from verify_service.targets.attention_step import LayerTraits
from verify_service.targets.fused_norm import device_norm, fused_norm
from verify_service.targets.row_operations import rotated

Angles: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines  # [1, num_rows, head_dim] each."""


class HeadRotation(Protocol):
    """The norm, if the layer has one, and the rotation."""

    def apply(self, heads: torch.Tensor, angles: Angles) -> torch.Tensor:
        """
        Return query and key heads as attention wants them.

        [num_rows, query, key and value heads, head_dim] -> [num_rows, query and key heads, ...].
        """
        ...


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norms of query and key heads in one."""

    weight: torch.Tensor  # [num_heads + num_kv_heads, head_dim]
    eps: float


class RowRotation:
    """Row by row, compiled."""

    def __init__(self, num_rotated: int, norm: HeadNorm | None) -> None:
        self._num_rotated = num_rotated
        self._weight = (norm.weight if norm else torch.empty((0, 0))).contiguous().numpy()
        self._eps = norm.eps if norm else 0.0

    def apply(self, heads: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return query and key heads as attention wants them."""
        return rotated(heads, self._num_rotated, self._weight, self._eps, angles)


class RotaryTables:
    """Cosines and sines as a device wants them; made once per step and kind of layer."""

    def __init__(self) -> None:
        self._recent: deque[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = deque(maxlen=4)

    def prepared(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines  # [1, num_rows, width] -> [num_rows, 1, width]."""
        for known, prepared_cos, prepared_sin in self._recent:
            if known is cos:
                return prepared_cos, prepared_sin
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        self._recent.appendleft((cos, cos[0, :, None], signed[0, :, None]))
        return cos[0, :, None], signed[0, :, None]


class DeviceRotation:
    """All rows at once, in operations that accelerators have as kernels."""

    def __init__(self, num_rotated: int, norm: HeadNorm | None, tables: RotaryTables) -> None:
        self._num_rotated = num_rotated
        self._norm = norm
        self._tables = tables

    def apply(self, heads: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return query and key heads as attention wants them."""
        heads = heads[:, : self._num_rotated]
        norm = self._norm
        if norm is not None:
            width = norm.weight.shape[-1:]
            heads = functional.rms_norm(heads, width, None, norm.eps).mul_(norm.weight)
        cos, sin = self._tables.prepared(*angles)
        turned = heads.roll(heads.shape[-1] // 2, -1).mul_(sin)
        return heads.mul_(cos).add_(turned)


def head_rotation(
    original: torch.nn.Module, traits: LayerTraits, tables: RotaryTables, *, is_exact: bool
) -> HeadRotation:
    """Return what ``original`` does to its heads; raises ``ValueError`` where norms do not fit."""
    norm = _head_norm(original, traits, is_exact=is_exact)
    num_rotated = traits.num_heads + traits.shape.num_kv_heads
    if is_exact:
        return RowRotation(num_rotated, norm)
    return DeviceRotation(num_rotated, norm, tables)


def _head_norm(
    original: torch.nn.Module, traits: LayerTraits, *, is_exact: bool
) -> HeadNorm | None:
    parts = [getattr(original, name, None) for name in ("q_norm", "k_norm")]
    if parts == [None, None]:
        return None
    make = fused_norm if is_exact else device_norm
    norms = [make(part) for part in parts if part is not None]
    query, key = (norm for norm in norms if norm is not None)
    shape = traits.shape
    if query.eps != key.eps or {query.weight.shape, key.weight.shape} != {(shape.head_dim,)}:
        raise ValueError("the norms of queries and keys differ")
    weights = [
        query.weight.expand(traits.num_heads, -1),
        key.weight.expand(shape.num_kv_heads, -1),
    ]
    return HeadNorm(torch.cat(weights).detach(), query.eps)
