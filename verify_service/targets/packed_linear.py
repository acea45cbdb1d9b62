"""
Linear layers whose output for a row does not depend on the other rows, bit for bit.

Matrix libraries choose their kernel by the number of rows, and kernels add up in different
orders. Both layers here therefore only ever run row counts that end in the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Literal, TypeAlias

import torch
from torch.nn import functional

Packing = Literal["float32", "packed-fp16"]

FLOAT32_ROWS = 16
"""The float32 kernels agree on row counts that are multiples of this."""

_TILE_ROWS = 120  # FBGEMM walks larger inputs in runs of this many rows
_MULTIPLY = torch.ops.quantized.linear_dynamic_fp16.default  # the overload: no dispatch in Python
_PACKERS = ThreadPoolExecutor(thread_name_prefix="pack")
"""Packing takes one core and no interpreter lock; a large head packs beside everything else."""
_FP16_MAX = torch.finfo(torch.float16).max


def padded_rows(num_rows: int, packing: Packing) -> int:
    """Return the smallest row count >= ``num_rows`` at which every row is computed alike."""
    if packing == "float32":
        return -(-num_rows // FLOAT32_ROWS) * FLOAT32_ROWS
    tiles, rest = divmod(num_rows, _TILE_ROWS)
    return tiles * _TILE_ROWS + (_alike_row_counts()[rest] if rest else 0)


def packing_works() -> bool:
    """Return whether this build of torch can multiply with fp16-packed weights."""
    return "fbgemm" in torch.backends.quantized.supported_engines


@cache
def _alike_row_counts() -> tuple[int, ...]:
    """
    Return for each row count below a tile the count to pad it to.

    FBGEMM splits the rows over kernels of several heights, the lowest of which (1 and 2 rows with
    AVX2) add up in another order. Which counts avoid them depends on the CPU, so it is measured.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((32, 96), generator=generator)
    rows = torch.randn((_TILE_ROWS, 96), generator=generator)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    expected = _MULTIPLY(rows, packed)
    counts = [_TILE_ROWS]
    for count in range(_TILE_ROWS - 1, 0, -1):
        result = _MULTIPLY(rows[:count], packed)
        counts.append(count if torch.equal(result, expected[:count]) else counts[-1])
    return (0, *reversed(counts[1:]))


def fits_fp16(weight: torch.Tensor) -> bool:
    """Return whether every weight is representable in fp16 without overflow."""
    return bool(weight.abs().max() <= _FP16_MAX)


class PackedLinear(torch.nn.Module):
    """A linear layer with weights packed as fp16; inputs, sums and outputs are float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packing = _PACKERS.submit(_pack, weight, bias)

    @cached_property
    def packed(self) -> torch.ScriptObject:
        """The packed weights; waits for the thread that packs them."""
        return self._packing.result()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product  # [..., in_features] -> [..., out_features]."""
        num_rows = rows.numel() // self.in_features
        wanted = padded_rows(num_rows, "packed-fp16")
        if wanted == num_rows:
            result: torch.Tensor = _MULTIPLY(rows, self.packed)
            return result
        padded = _with_rows(rows, wanted)
        result = _MULTIPLY(padded, self.packed)
        return result[:num_rows].view(*rows.shape[:-1], self.out_features)


def wait_until_packed(model: torch.nn.Module) -> None:
    """Return when no layer of ``model`` is being packed any more."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            _ = module.packed


def _pack(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.ScriptObject:
    packed: torch.ScriptObject = torch.ops.quantized.linear_prepack_fp16(
        weight.detach().float().contiguous(), None if bias is None else bias.detach().float()
    )
    return packed


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
