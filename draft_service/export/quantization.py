"""
Block-wise weight quantization in the layout of onnxruntime's ``MatMulNBits``, and of rows.

Bytes are symmetric around 128 and need no zero points. Of 4 bits, scale and zero point are chosen
per block for the least squared error among a few candidates, as llama.cpp does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Bits = Literal[4, 8]
Matrix = npt.NDArray[np.float32]

BLOCK_SIZES: Mapping[Bits, int] = {4: 32, 8: 64}
"""Columns that share a scale: products are bound by the bytes that they read, so 8 bits, which
can afford it, have larger blocks."""

_ROWS_AT_ONCE = 4096
_SHRINKAGES = (1.0, 0.96, 0.92, 0.88, 0.84)
"""Candidates for the range of a block, as shares of its extremes: outliers may be cut."""

_IMPLIED_ZERO: Final = 128
_LARGEST_BYTE: Final = 127


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A quantized matrix of N rows and K columns, in blocks along K."""

    values: npt.NDArray[np.uint8]
    """[N, K / block, block * bits / 8]; of two 4-bit values the first is the low half."""
    scales: Matrix
    """[N, K / block]"""
    zero_points: npt.NDArray[np.uint8] | None
    """[N, K / block * bits / 8], packed like the values; ``None``: 128, the kernel's own."""
    num_columns: int
    bits: Bits

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.values.shape[0])

    @property
    def block_size(self) -> int:
        """Columns that share a scale."""
        return BLOCK_SIZES[self.bits]

    def dequantized(self) -> Matrix:
        """Return the matrix that the quantized one stands for  # [N, K]."""
        values = _unpacked(self.values, self.bits).astype(np.float32)
        blocks = (values - self._zeros()) * self.scales[:, :, None]
        return blocks.reshape(self.num_rows, -1)[:, : self.num_columns]

    def _zeros(self) -> Matrix:
        if self.zero_points is None:
            return np.full((1, 1, 1), _IMPLIED_ZERO, dtype=np.float32)
        zeros = _unpacked(self.zero_points, self.bits)[:, : self.scales.shape[1], None]
        return zeros.astype(np.float32)


@dataclass(frozen=True, slots=True)
class RowMatrix:
    """A matrix of signed bytes with one scale per row, to look rows up in."""

    values: npt.NDArray[np.int8]
    scales: Matrix
    """[rows, 1]"""


def quantize_blocks(matrix: Matrix, bits: Bits) -> BlockMatrix:
    """Quantize a matrix  # [N, K]; columns are padded to whole blocks."""
    quantize = _quantize_nibbles if bits == 4 else _quantize_bytes
    parts = [
        quantize(_in_blocks(matrix[start : start + _ROWS_AT_ONCE], BLOCK_SIZES[bits]))
        for start in range(0, len(matrix), _ROWS_AT_ONCE)
    ]
    zero_points = [part.zero_points for part in parts if part.zero_points is not None]
    return BlockMatrix(
        values=np.concatenate([part.values for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zero_points=np.concatenate(zero_points) if zero_points else None,
        num_columns=matrix.shape[1],
        bits=bits,
    )


def quantize_rows(matrix: Matrix) -> RowMatrix:
    """Quantize each row to signed bytes by its largest magnitude."""
    scales = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-12) / np.float32(127)
    values = np.rint(matrix / scales).astype(np.int8)
    return RowMatrix(values, scales.astype(np.float32))


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows; fields as in ``BlockMatrix``."""

    values: npt.NDArray[np.uint8]
    scales: Matrix
    zero_points: npt.NDArray[np.uint8] | None = None


def _in_blocks(rows: Matrix, block_size: int) -> Matrix:
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block_size)))
    return padded.reshape(len(rows), -1, block_size)


def _quantize_bytes(blocks: Matrix) -> _Part:
    scales = np.maximum(np.abs(blocks).max(axis=2), 1e-12) / np.float32(_LARGEST_BYTE)
    values = np.rint(blocks / scales[:, :, None]) + np.float32(_IMPLIED_ZERO)
    return _Part(values.astype(np.uint8), scales.astype(np.float32))


def _quantize_nibbles(blocks: Matrix) -> _Part:
    low = np.minimum(blocks.min(axis=2), 0.0)
    high = np.maximum(blocks.max(axis=2), 0.0)
    top = 15
    best_error = np.full(low.shape, np.inf, dtype=np.float32)
    scales = np.ones_like(low)
    zeros = np.zeros_like(low)
    values = np.zeros(blocks.shape, dtype=np.uint8)
    for shrinkage in _SHRINKAGES:
        scale = np.maximum((high - low) * np.float32(shrinkage / top), 1e-12)
        zero = np.clip(np.rint(-low * np.float32(shrinkage) / scale), 0, top)
        tried = np.clip(np.rint(blocks / scale[:, :, None]) + zero[:, :, None], 0, top)
        restored = (tried - zero[:, :, None]) * scale[:, :, None]
        error = ((restored - blocks) ** 2).sum(axis=2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scales = np.where(better, scale, scales)
        zeros = np.where(better, zero, zeros)
        values = np.where(better[:, :, None], tried.astype(np.uint8), values)
    return _Part(_packed(values), scales.astype(np.float32), _packed(zeros.astype(np.uint8)))


def _packed(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    return np.asarray(values[..., 0::2] | (values[..., 1::2] << 4), dtype=np.uint8)


def _unpacked(packed: npt.NDArray[np.uint8], bits: Bits) -> npt.NDArray[np.uint8]:
    if bits == 8:
        return packed
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    return np.asarray(halves.reshape(*packed.shape[:-1], -1), dtype=np.uint8)
