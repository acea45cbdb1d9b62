"""
What a step does to a row outside the matrix products, compiled for the CPU.

Each row goes alone through the same code: loops over its width begin at its first element, loops
over its keys at the first of its path. Vector code adds up in an order of its own, but in the same
one wherever the row stands, so that a row's bits depend on nothing else in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.compiled_code import code_folder, compiled_entry, compiled_part

Reals: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.int64]

NO_PARENT: Final = -1
SILU: Final = 0
GELU_TANH: Final = 1

_ANY_ORDER: Final = frozenset({"contract", "reassoc", "nsz"})
part = partial(compiled_part, fastmath=set(_ANY_ORDER))
_exact_part = partial(compiled_part, fastmath={"contract"})
_FOLDER: Final = code_folder([Path(__file__)])

ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)
TWO: Final = np.float32(2)

_EXP_RANGE: Final = np.float32(87.3)
_LOG2_E: Final = np.float32(1.44269504)
_LN2_HIGH: Final = np.float32(0.693359375)
_LN2_LOW: Final = np.float32(-2.12194440e-4)
_TO_INTEGER: Final = np.float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest integer in the lowest bits: rounding by a function, or
converting to an integer, would leave a loop without vector code."""
_EXPONENT_ZERO: Final = np.int32(_TO_INTEGER.view(np.int32) - np.int32(127))
_EXP_TERMS: Final = tuple(
    np.float32(term)
    for term in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
"""The polynomial of the Cephes library's ``expf``: relative error below 1e-7."""

_GELU_INNER: Final = np.float32(0.044715)
_GELU_SCALE: Final = np.float32(2.0 * 0.7978845608028654)


def _entry(signature: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return partial(
        compiled_entry,
        folder=_FOLDER,
        signature=signature,
        fastmath=set(_ANY_ORDER),
        nogil=True,
    )


@_exact_part
def exp(value: np.float32) -> np.float32:
    """Return e to ``value``; beyond +-87.3 that of the limit. Compiles to vector code in loops."""
    value = min(max(value, -_EXP_RANGE), _EXP_RANGE)
    shifted = np.float32(value * _LOG2_E + _TO_INTEGER)
    exponent = shifted - _TO_INTEGER
    rest = value - exponent * _LN2_HIGH
    rest = rest - exponent * _LN2_LOW
    total = _EXP_TERMS[0] * rest + _EXP_TERMS[1]
    total = total * rest + _EXP_TERMS[2]
    total = total * rest + _EXP_TERMS[3]
    total = total * rest + _EXP_TERMS[4]
    total = total * rest + _EXP_TERMS[5]
    total = total * rest * rest + rest + ONE
    bits = np.int32((shifted.view(np.int32) - _EXPONENT_ZERO) << np.int32(23))
    return total * bits.view(np.float32)


@_entry("void(f4[:, ::1], f4[::1], f4, f4[:, ::1])")
def normalise(rows: Reals, weight: Reals, eps: float, out: Reals) -> None:
    """Write the RMS norm of each row, times ``weight``  # rows, out: [num_rows, width]."""
    width = weight.shape[0]
    for r in range(rows.shape[0]):
        row, result = rows[r], out[r]
        squares = ZERO
        for i in range(width):
            squares += row[i] * row[i]
        inverse = ONE / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            result[i] = row[i] * inverse * weight[i]


@part
def _add_row(residual: Reals, change: Reals, weight: Reals, eps: float, total: Reals) -> None:
    width = residual.shape[0]
    if weight.shape[0] == 0:
        for i in range(width):
            total[i] = residual[i] + change[i]
        return
    squares = ZERO
    for i in range(width):
        squares += change[i] * change[i]
    inverse = ONE / np.sqrt(squares / np.float32(width) + eps)
    for i in range(width):
        total[i] = residual[i] + change[i] * inverse * weight[i]


@_entry("void(f4[:, ::1], f4[:, ::1], f4[::1], f4, f4[:, ::1])")
def add(residual: Reals, change: Reals, weight: Reals, eps: float, total: Reals) -> None:
    """
    Write ``residual`` plus ``change``, the latter normalised first if there are weights for it.

    ``residual``, ``change``, ``total``: [num_rows, width]; ``weight``: [width], or empty.
    """
    for r in range(residual.shape[0]):
        _add_row(residual[r], change[r], weight, eps, total[r])


@_entry("void(f4[:, :, ::1], f4[:, ::1], f4, f4[:, ::1], f4[:, ::1], f4[:, :, ::1])")
def rotate(heads: Reals, weight: Reals, eps: float, cos: Reals, sin: Reals, out: Reals) -> None:
    """
    Write each head normalised, times its weights, and rotated by the row's angles.

    ``heads``: [num_rows, >= num_rotated, head_dim]; ``weight``: [num_rotated, head_dim], or empty
    for no norm; ``cos``, ``sin``: [num_rows, head_dim]; ``out``: [num_rows, num_rotated, head_dim].
    """
    dim = cos.shape[1]
    half = dim // 2
    scaled = np.empty(dim, np.float32)
    for r in range(out.shape[0]):
        cosines, sines = cos[r], sin[r]
        for h in range(out.shape[1]):
            head, result = heads[r, h], out[r, h]
            if weight.shape[0] == 0:
                for i in range(dim):
                    scaled[i] = head[i]
            else:
                factors = weight[h]
                squares = ZERO
                for i in range(dim):
                    squares += head[i] * head[i]
                inverse = ONE / np.sqrt(squares / np.float32(dim) + eps)
                for i in range(dim):
                    scaled[i] = head[i] * inverse * factors[i]
            for i in range(half):
                low, high = scaled[i], scaled[i + half]
                result[i] = low * cosines[i] - high * sines[i]
                result[i + half] = high * cosines[i + half] + low * sines[i + half]


@_entry("void(f4[:, ::1], i8, f4[:, ::1])")
def gate(inner: Reals, activation: int, out: Reals) -> None:
    """Write ``activation(first half) * second half``  # [num_rows, 2 * width] -> [.., width]."""
    width = out.shape[1]
    for r in range(out.shape[0]):
        gates, values, result = inner[r, :width], inner[r, width:], out[r]
        if activation == SILU:
            for i in range(width):
                x = gates[i]
                result[i] = x / (ONE + exp(-x)) * values[i]
        else:
            # 0.5 * (1 + tanh(u)) is the sigmoid of 2 u.
            for i in range(width):
                x = gates[i]
                u = _GELU_SCALE * x * (ONE + _GELU_INNER * x * x)
                result[i] = x / (ONE + exp(-u)) * values[i]


SLOT, POSITION, PARENT, CONTEXT_LEN, FIRST_KEY = range(5)
ROW_FIELDS: Final = 5
"""Columns of ``rows`` below: a row's KV slot, its position, its parent as a row of the batch, how
much context its sequence has stored, and where that begins in ``key_slots``."""


@_entry("void(f4[:, :, ::1], f4[:, :, ::1], i8[:, ::1], f4[:, :, ::1], f4[:, :, ::1])")
def store(keys: Reals, values: Reals, rows: Integers, all_keys: Reals, all_values: Reals) -> None:
    """Copy each row's KV into its slot  # [>= num_rows, ...] -> [num_slots, ...]."""
    for r in range(rows.shape[0]):
        slot = rows[r, SLOT]
        all_keys[slot] = keys[r]
        all_values[slot] = values[r]
