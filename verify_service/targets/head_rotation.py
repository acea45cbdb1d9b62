"""The norm and the rotation of query and key heads, in the fewest operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from verify_service.targets.attention_step import LayerTraits
from verify_service.targets.fused_norm import device_norm, fused_norm
from verify_service.targets.row_operations import rotated

Angles: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines  # [1, num_rows, head_dim] each."""

Table = TypeVar("Table")


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


class RotaryTables(Generic[Table]):
    """Cosines and sines as rotations want them; made once per step and kind of layer."""

    def __init__(self, prepare: Callable[[Angles], tuple[Table, Table]]) -> None:
        self._prepare = prepare
        self._recent: deque[tuple[torch.Tensor, tuple[Table, Table]]] = deque(maxlen=4)

    def prepared(self, angles: Angles) -> tuple[Table, Table]:
        """Return cosines and sines, prepared."""
        for known, prepared in self._recent:
            if known is angles[0]:
                return prepared
        prepared = self._prepare(angles)
        self._recent.appendleft((angles[0], prepared))
        return prepared


def as_arrays(angles: Angles) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return cosines and sines  # [1, num_rows, width] -> [num_rows, width]."""
    cos, sin = (each[0].contiguous().numpy() for each in angles)
    return cos, sin


def with_signs(angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and signed sines  # [1, num_rows, width] -> [num_rows, 1, width]."""
    cos, sin = angles
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
    return cos[0, :, None], signed[0, :, None]


class RotaryForms:
    """The tables of a model, in the forms of both rotations."""

    def __init__(self) -> None:
        self.rows = RotaryTables(as_arrays)
        self.device = RotaryTables(with_signs)


class RowRotation:
    """Row by row, compiled."""

    def __init__(self, num_rotated: int, norm: HeadNorm | None, forms: RotaryForms) -> None:
        self._num_rotated = num_rotated
        self._weight = (norm.weight if norm else torch.empty((0, 0))).contiguous().numpy()
        self._eps = norm.eps if norm else 0.0
        self._tables = forms.rows

    def apply(self, heads: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return query and key heads as attention wants them."""
        tables = self._tables.prepared(angles)
        return rotated(heads, self._num_rotated, self._weight, self._eps, tables)


class DeviceRotation:
    """All rows at once, in operations that accelerators have as kernels."""

    def __init__(self, num_rotated: int, norm: HeadNorm | None, forms: RotaryForms) -> None:
        self._num_rotated = num_rotated
        self._norm = norm
        self._tables = forms.device

    def apply(self, heads: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return query and key heads as attention wants them."""
        heads = heads[:, : self._num_rotated]
        norm = self._norm
        if norm is not None:
            width = norm.weight.shape[-1:]
            heads = functional.rms_norm(heads, width, None, norm.eps).mul_(norm.weight)
        cos, sin = self._tables.prepared(angles)
        turned = heads.roll(heads.shape[-1] // 2, -1).mul_(sin)
        return heads.mul_(cos).add_(turned)


def head_rotation(
    original: torch.nn.Module, traits: LayerTraits, forms: RotaryForms, *, is_exact: bool
) -> HeadRotation:
    """Return what ``original`` does to its heads; raises ``ValueError`` where norms do not fit."""
    norm = _head_norm(original, traits, is_exact=is_exact)
    num_rotated = traits.num_heads + traits.shape.num_kv_heads
    if is_exact:
        return RowRotation(num_rotated, norm, forms)
    return DeviceRotation(num_rotated, norm, forms)


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
