"""
What a step does to a row outside the matrix products, compiled for the CPU.

Each row goes alone through the same code: loops over its width begin at its first element, loops
over its keys at the first of its path. Vector code adds up in an order of its own, but in the same
one wherever the row stands, so that a row's bits depend on nothing else in the batch.
"""

from __future__ import annotations

import math
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
_part = partial(compiled_part, fastmath=set(_ANY_ORDER))
_exact_part = partial(compiled_part, fastmath={"contract"})
_FOLDER: Final = code_folder([Path(__file__)])

_ZERO: Final = np.float32(0)
_ONE: Final = np.float32(1)
_TWO: Final = np.float32(2)

_EXP_RANGE: Final = np.float32(87.3)
_LOG2_E: Final = np.float32(1.44269504)
_LN2_HIGH: Final = np.float32(0.693359375)
_LN2_LOW: Final = np.float32(-2.12194440e-4)
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
def _exp(value: np.float32) -> np.float32:
    """Return e to ``value``; beyond +-87.3 that of the limit. Compiles to vector code in loops."""
    value = min(max(value, -_EXP_RANGE), _EXP_RANGE)
    exponent = math.floor(value * _LOG2_E + np.float32(0.5))
    rest = value - exponent * _LN2_HIGH
    rest = rest - exponent * _LN2_LOW
    total = _EXP_TERMS[0] * rest + _EXP_TERMS[1]
    total = total * rest + _EXP_TERMS[2]
    total = total * rest + _EXP_TERMS[3]
    total = total * rest + _EXP_TERMS[4]
    total = total * rest + _EXP_TERMS[5]
    total = total * rest * rest + rest + _ONE
    bits = np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23))
    return total * bits.view(np.float32)


@_entry("void(f4[:, ::1], f4[::1], f4, f4[:, ::1])")
def normalise(rows: Reals, weight: Reals, eps: float, out: Reals) -> None:
    """Write the RMS norm of each row, times ``weight``  # rows, out: [num_rows, width]."""
    width = weight.shape[0]
    for r in range(rows.shape[0]):
        row, result = rows[r], out[r]
        squares = _ZERO
        for i in range(width):
            squares += row[i] * row[i]
        inverse = _ONE / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            result[i] = row[i] * inverse * weight[i]


@_part
def _add_row(residual: Reals, change: Reals, weight: Reals, eps: float, total: Reals) -> None:
    width = residual.shape[0]
    if weight.shape[0] == 0:
        for i in range(width):
            total[i] = residual[i] + change[i]
        return
    squares = _ZERO
    for i in range(width):
        squares += change[i] * change[i]
    inverse = _ONE / np.sqrt(squares / np.float32(width) + eps)
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
                squares = _ZERO
                for i in range(dim):
                    squares += head[i] * head[i]
                inverse = _ONE / np.sqrt(squares / np.float32(dim) + eps)
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
                result[i] = x / (_ONE + _exp(-x)) * values[i]
        else:
            # 0.5 * (1 + tanh(u)) is the sigmoid of 2 u.
            for i in range(width):
                x = gates[i]
                u = _GELU_SCALE * x * (_ONE + _GELU_INNER * x * x)
                result[i] = x / (_ONE + _exp(-u)) * values[i]


@_part
def _write_scores(
    queries: Reals, keys: Reals, slots: Integers, group: int, scaling: float, scores: Reals
) -> None:
    """Write the products of the queries of one key head with all keys of a path."""
    dim = queries.shape[1]
    count = scores.shape[0]
    num_paired = count // 4 * 4
    for h in range(0, num_paired, 4):
        a, b, c, d = queries[h], queries[h + 1], queries[h + 2], queries[h + 3]
        for j in range(slots.shape[0]):
            key = keys[slots[j], group]
            sum_a = sum_b = sum_c = sum_d = _ZERO
            for i in range(dim):
                x = key[i]
                sum_a += a[i] * x
                sum_b += b[i] * x
                sum_c += c[i] * x
                sum_d += d[i] * x
            scores[h, j] = sum_a * scaling
            scores[h + 1, j] = sum_b * scaling
            scores[h + 2, j] = sum_c * scaling
            scores[h + 3, j] = sum_d * scaling
    for h in range(num_paired, count):
        query = queries[h]
        for j in range(slots.shape[0]):
            key = keys[slots[j], group]
            total = _ZERO
            for i in range(dim):
                total += query[i] * key[i]
            scores[h, j] = total * scaling


@_part
def _to_weights(scores: Reals, softcap: float) -> None:
    """Turn the scores of one query into weights that add up to 1; ``softcap`` 0 caps nothing."""
    count = scores.shape[0]
    if softcap > _ZERO:
        for j in range(count):
            scores[j] = softcap * (_ONE - _TWO / (_ONE + _exp(_TWO * scores[j] / softcap)))
    largest = scores[0]
    for j in range(1, count):
        largest = max(largest, scores[j])
    total = _ZERO
    for j in range(count):
        weight = _exp(scores[j] - largest)
        scores[j] = weight
        total += weight
    inverse = _ONE / total
    for j in range(count):
        scores[j] *= inverse


@_part
def _write_sums(weights: Reals, values: Reals, slots: Integers, group: int, out: Reals) -> None:
    """Write the weighted sums of the values of a path, for the queries of one key head."""
    dim = out.shape[1]
    num_keys = slots.shape[0]
    out[:] = _ZERO
    num_paired = num_keys // 4 * 4
    for j in range(0, num_paired, 4):
        a, b = values[slots[j], group], values[slots[j + 1], group]
        c, d = values[slots[j + 2], group], values[slots[j + 3], group]
        for h in range(out.shape[0]):
            weight, result = weights[h], out[h]
            of_a, of_b, of_c, of_d = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
            for i in range(dim):
                result[i] += of_a * a[i] + of_b * b[i] + of_c * c[i] + of_d * d[i]
    for j in range(num_paired, num_keys):
        value = values[slots[j], group]
        for h in range(out.shape[0]):
            share, result = weights[h, j], out[h]
            for i in range(dim):
                result[i] += share * value[i]


SLOT, POSITION, PARENT, CONTEXT_LEN, FIRST_KEY = range(5)
"""Columns of ``rows`` below: a row's KV slot, its position, its parent as a row of the batch, how
much context its sequence has stored, and where that begins in ``key_slots``."""


@_entry("void(f4[:, :, ::1], f4[:, :, ::1], i8[:, ::1], f4[:, :, ::1], f4[:, :, ::1])")
def store(keys: Reals, values: Reals, rows: Integers, all_keys: Reals, all_values: Reals) -> None:
    """Copy each row's KV into its slot  # [>= num_rows, ...] -> [num_slots, ...]."""
    for r in range(rows.shape[0]):
        slot = rows[r, SLOT]
        all_keys[slot] = keys[r]
        all_values[slot] = values[r]


@_part
def _write_path(
    row: int, first_key: int, window: int, rows: Integers, key_slots: Integers, path: Integers
) -> int:
    """Write the slots that a row sees, oldest first, and return how many they are."""
    position = rows[row, POSITION]
    oldest = max(position - window + 1, 0) if window > 0 else 0
    context_len = rows[row, CONTEXT_LEN]
    count = int(max(context_len - oldest, 0))
    path[:count] = key_slots[first_key + oldest : first_key + oldest + count]
    end = count
    ancestor = row
    while ancestor != NO_PARENT and rows[ancestor, POSITION] >= oldest:
        path[end] = rows[ancestor, SLOT]
        end += 1
        ancestor = rows[ancestor, PARENT]
    path[count:end] = path[count:end][::-1].copy()
    return end


@_entry(
    "void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i8[:, ::1], i8[::1], i8, i8, i8, f4, f4, "
    "i8, f4[:, :, ::1])"
)
def attend(
    queries: Reals,
    keys: Reals,
    values: Reals,
    rows: Integers,
    key_slots: Integers,
    start: int,
    stop: int,
    longest: int,
    scaling: float,
    softcap: float,
    window: int,
    out: Reals,
) -> None:
    """
    Write what rows ``start`` to ``stop - 1`` attend to  # queries, out: [num_rows, heads, dim].

    ``keys``, ``values``: [num_slots, num_kv_heads, dim], those of the rows included; ``rows``:
    [num_rows, 5], see the columns; ``longest``: no path is longer; ``window``, ``softcap``: 0 for
    none.
    """
    num_kv_heads = keys.shape[1]
    size = queries.shape[1] // num_kv_heads
    scores = np.empty((size, longest), np.float32)
    path = np.empty(longest, np.int64)
    for row in range(start, stop):
        count = _write_path(row, rows[row, FIRST_KEY], window, rows, key_slots, path)
        slots = path[:count]
        for group in range(num_kv_heads):
            first = group * size
            weights = scores[:, :count]
            _write_scores(queries[row, first : first + size], keys, slots, group, scaling, weights)
            for h in range(size):
                _to_weights(scores[h, :count], softcap)
            _write_sums(weights, values, slots, group, out[row, first : first + size])
