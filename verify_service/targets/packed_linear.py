"""
Linear layers whose output for a row does not depend on the other rows, bit for bit.

Matrix libraries choose their kernel by the number of rows, and kernels add up in different
orders. With fp16 weights a kernel of our own is used, which has one order; float32 weights only
ever run row counts that end in the same kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch.nn import functional

from verify_service.targets import matrix_kernel
from verify_service.targets.thread_team import run_on_team

Packing = Literal["float32", "packed-fp16"]

FLOAT32_ROWS = 16
"""The float32 kernels agree on row counts that are multiples of this."""

_Task = ctypes.c_int64 * matrix_kernel.TASK_FIELDS
PACKERS = ThreadPoolExecutor(thread_name_prefix="pack")
"""Packing takes one core and no interpreter lock; a large head packs beside everything else."""
_FP16_MAX = torch.finfo(torch.float16).max
_WORTH_A_TEAM = 1 << 20
"""Multiplications that take longer than waking a thread."""
_ROWS_FOR_FREE = 8
"""Up to so many rows cost what reading the weights does."""


def padded_rows(num_rows: int, packing: Packing) -> int:
    """Return the smallest row count >= ``num_rows`` at which every row is computed alike."""
    if packing == "packed-fp16":
        return num_rows
    return -(-num_rows // FLOAT32_ROWS) * FLOAT32_ROWS


packing_works = matrix_kernel.converts_fp16
"""Whether this CPU can multiply with fp16-packed weights."""


def fits_fp16(weight: torch.Tensor) -> bool:
    """Return whether every weight is representable in fp16 without overflow."""
    return bool(weight.abs().max() <= _FP16_MAX)


class PackedLinear(torch.nn.Module):
    """A linear layer with weights packed as fp16; inputs, sums and outputs are float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._num_panels = -(-self.out_features // matrix_kernel.PANEL)
        self._width = self._num_panels * matrix_kernel.PANEL
        self._bias = torch.zeros(self._width)
        if bias is not None:
            self._bias[: self.out_features] = bias.detach()
        self._packing = PACKERS.submit(_pack, weight, self._width)

    @cached_property
    def packed(self) -> torch.Tensor:
        """The packed weights; waits for the thread that packs them."""
        return self._packing.result()

    def wait_until_packed(self) -> None:
        """Return when other threads have done what the layer needs of them."""
        _ = self.packed

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """
        Return the product  # [..., in_features] -> [..., out_features].

        Raises ``ValueError`` unless ``rows`` are float32 and as wide as the layer's inputs.
        """
        rows = self.readable(rows)
        result = torch.empty((*rows.shape[:-1], self._width))
        self.multiply(rows, result.data_ptr())
        return result if self._width == self.out_features else result[..., : self.out_features]

    def readable(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows as the kernels read them, by address; raises ``ValueError`` for others."""
        if rows.shape[-1] != self.in_features or rows.dtype != torch.float32:
            raise ValueError(
                f"rows of {self.in_features} float32 values are needed, "
                f"not of {rows.shape[-1]} {rows.dtype}"
            )
        return rows.contiguous()

    def multiply(
        self, rows: torch.Tensor, results: int, first: int = 0, last: int | None = None
    ) -> None:
        """Compute panels ``first`` to ``last - 1`` of contiguous rows, and put them there."""
        num_rows = rows.numel() // self.in_features
        num_panels = (self._num_panels if last is None else last) - first
        work = num_panels * matrix_kernel.PANEL * self.in_features * max(num_rows, _ROWS_FOR_FREE)
        packed = self.packed
        task = _Task(
            0,
            num_panels,
            num_rows,
            self.in_features,
            rows.data_ptr(),
            packed.data_ptr() + first * packed.stride(0) * packed.element_size(),
            self._bias.data_ptr() + first * matrix_kernel.PANEL * self._bias.element_size(),
            results,
        )
        run_on_team(matrix_kernel.multiply(), ctypes.addressof(task), alone=work < _WORTH_A_TEAM)


def wait_until_packed(model: torch.nn.Module) -> None:
    """Return when no layer of ``model`` is being packed any more."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.wait_until_packed()


def _pack(weight: torch.Tensor, width: int) -> torch.Tensor:
    """Return the weights in panels  # [out, in] -> [width / PANEL, in, PANEL]."""
    missing = width - weight.shape[0]
    padded = functional.pad(weight.detach(), (0, 0, 0, missing)) if missing else weight.detach()
    panels = padded.reshape(-1, matrix_kernel.PANEL, weight.shape[1]).transpose(1, 2)
    # Made anew even where the weights lie that way already: the kernel wants them aligned.
    return torch.empty(panels.shape, dtype=torch.float16).copy_(panels)


class PaddedLinear(torch.nn.Module):
    """A float32 linear layer that pads its rows to a count at which the kernel is the same."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._weight = weight.detach().float().contiguous()
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product  # [..., in_features] -> [..., out_features]."""
        num_rows = rows.numel() // self.in_features
        padded = _with_rows(rows, padded_rows(num_rows, "float32"))
        result = functional.linear(padded, self._weight, self._bias)
        return result[:num_rows].view(*rows.shape[:-1], self.out_features)


class PlainLinear(torch.nn.Module):
    """A linear layer that keeps its weights as they are; rows are not computed alike."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product  # [..., in_features] -> [..., out_features]."""
        return functional.linear(rows, self.weight, self.bias)


AnyLinear: TypeAlias = PackedLinear | PaddedLinear | PlainLinear


def exact_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, packing: Packing | None
) -> AnyLinear:
    """
    Return a row-independent layer; weights beyond fp16 stay float32.

    Without ``packing`` nothing is promised about rows, and weights are taken as they are.
    """
    if packing is None:
        return PlainLinear(weight, bias)
    if packing == "packed-fp16" and fits_fp16(weight):
        return PackedLinear(weight, bias)
    return PaddedLinear(weight, bias)


def linear_layers(module: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Linear] | None:
    """Return the children with these names if all are plain linear layers."""
    children = [getattr(module, name, None) for name in names]
    found = [child for child in children if type(child) is torch.nn.Linear]
    return found if len(found) == len(names) else None


def joined_linear(layers: Sequence[torch.nn.Linear], packing: Packing | None) -> AnyLinear:
    """Return one layer whose output is that of ``layers``, side by side."""
    joined: torch.Tensor | None = None
    if any(layer.bias is not None for layer in layers):
        joined = torch.cat(
            [
                layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
                for layer in layers
            ]
        )
    return exact_linear(torch.cat([layer.weight for layer in layers]), joined, packing)


def _with_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    flat = rows.reshape(-1, rows.shape[-1])
    missing = count - flat.shape[0]
    return functional.pad(flat, (0, 0, 0, missing)) if missing else flat
