"""
What each row attends to, compiled for the CPU.

A row's path is walked from the oldest key to the row itself, in the same code whichever thread does
it and whatever rows stand beside it, so that its bits depend on nothing else (see ``row_kernels``).
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from paceline.compiled_code import code_folder, compiled_callback
from verify_service.targets import attention_tiles, row_kernels, team_tasks, vector_code
from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.attention_tiles import HEADS
from verify_service.targets.row_kernels import (
    CONTEXT_LEN,
    FIRST_KEY,
    NO_PARENT,
    ONE,
    PARENT,
    POSITION,
    SLOT,
    TWO,
    ZERO,
    Integers,
    Reals,
    exp,
    part,
)
from verify_service.targets.team_tasks import array_at, integers_at, reals_at, take
from verify_service.targets.thread_team import run_on_team
from verify_service.targets.vector_code import LANES

(
    _NEXT,
    _NUM_ROWS,
    _NUM_HEADS,
    _NUM_KV_HEADS,
    _DIM,
    _NUM_SLOTS,
    _NUM_KEY_SLOTS,
    _LONGEST,
    _WINDOW,
    _QUERIES,
    _KEYS,
    _VALUES,
    _ROWS,
    _KEY_SLOTS,
    _SCALARS,
    _OUT,
) = range(16)
_TASK_FIELDS: Final = 16
"""Columns of a task, int64: the next row that no thread has taken, sizes, and addresses."""

_Task = ctypes.c_int64 * _TASK_FIELDS
_Scalars = ctypes.c_float * 2


@part
def _write_scores(
    queries: Reals, keys: Reals, slots: Integers, group: int, scores: Reals, value_distance: int
) -> None:
    """Write the products of the queries of one key head with all keys of a path."""
    num_heads, dim = queries.shape
    if dim % LANES:
        _write_scores_singly(queries, keys, slots, group, scores)
        return
    for h in range(0, num_heads, HEADS):
        attention_tiles.write_scores(
            min(num_heads - h, HEADS),
            *(queries.strides[0], scores.strides[0]),
            *(queries[h].ctypes.data, dim // LANES),
            *(keys[0, group].ctypes.data, keys.strides[0]),
            *(slots.ctypes.data, slots.shape[0], scores[h].ctypes.data),
            value_distance,
        )


@part
def _write_scores_singly(
    queries: Reals, keys: Reals, slots: Integers, group: int, scores: Reals
) -> None:
    for h in range(scores.shape[0]):
        for j in range(slots.shape[0]):
            total = ZERO
            for i in range(queries.shape[1]):
                total += queries[h, i] * keys[slots[j], group, i]
            scores[h, j] = total


@part
def _to_weights(scores: Reals, scaling: float, softcap: float) -> None:
    """Turn the products of one query into weights that add up to 1; ``softcap`` 0 caps nothing."""
    count = scores.shape[0]
    for j in range(count):
        scores[j] *= scaling
    if softcap > ZERO:
        for j in range(count):
            scores[j] = softcap * (ONE - TWO / (ONE + exp(TWO * scores[j] / softcap)))
    largest = scores[0]
    for j in range(1, count):
        largest = max(largest, scores[j])
    total = ZERO
    for j in range(count):
        weight = exp(scores[j] - largest)
        scores[j] = weight
        total += weight
    inverse = ONE / total
    for j in range(count):
        scores[j] *= inverse


@part
def _write_sums(weights: Reals, values: Reals, slots: Integers, group: int, out: Reals) -> None:
    """Write the weighted sums of the values of a path, for the queries of one key head."""
    num_heads, dim = out.shape
    if dim % LANES:
        _write_sums_singly(weights, values, slots, group, out)
        return
    for h in range(0, num_heads, HEADS):
        attention_tiles.write_sums(
            min(num_heads - h, HEADS),
            *(out.strides[0], weights.strides[0]),
            *(out[h].ctypes.data, dim // LANES),
            *(values[0, group].ctypes.data, values.strides[0]),
            *(slots.ctypes.data, slots.shape[0], weights[h].ctypes.data),
            0,
        )


@part
def _write_sums_singly(
    weights: Reals, values: Reals, slots: Integers, group: int, out: Reals
) -> None:
    out[:] = ZERO
    for j in range(slots.shape[0]):
        for h in range(out.shape[0]):
            for i in range(out.shape[1]):
                out[h, i] += weights[h, j] * values[slots[j], group, i]


@part
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


def _attend(address: Any) -> None:
    """Attend for rows that no other thread has taken, until there are none."""
    task = array_at(address, _TASK_FIELDS)
    num_rows, dim, longest = task[_NUM_ROWS], task[_DIM], task[_LONGEST]
    shape = (num_rows, task[_NUM_HEADS], dim)
    cache = (task[_NUM_SLOTS], task[_NUM_KV_HEADS], dim)
    queries, out = (
        array_at(reals_at(task[_QUERIES]), shape),
        array_at(reals_at(task[_OUT]), shape),
    )
    keys, values = (
        array_at(reals_at(task[_KEYS]), cache),
        array_at(reals_at(task[_VALUES]), cache),
    )
    rows = array_at(integers_at(task[_ROWS]), (num_rows, row_kernels.ROW_FIELDS))
    key_slots = array_at(integers_at(task[_KEY_SLOTS]), task[_NUM_KEY_SLOTS])
    scaling, softcap = array_at(reals_at(task[_SCALARS]), 2)
    size = task[_NUM_HEADS] // task[_NUM_KV_HEADS]
    scores = np.empty((size, longest), np.float32)
    path = np.empty(longest, np.int64)
    row = take(task.ctypes.data, 1)
    while row < num_rows:
        count = _write_path(row, rows[row, FIRST_KEY], task[_WINDOW], rows, key_slots, path)
        slots, weights = path[:count], scores[:, :count]
        for group in range(task[_NUM_KV_HEADS]):
            first = group * size
            of_group = queries[row, first : first + size]
            _write_scores(of_group, keys, slots, group, weights, task[_VALUES] - task[_KEYS])
            for h in range(size):
                _to_weights(scores[h, :count], scaling, softcap)
            _write_sums(weights, values, slots, group, out[row, first : first + size])
        row = take(task.ctypes.data, 1)


_attend_in_parts: Final = compiled_callback(
    _attend,
    code_folder(
        Path(str(module.__file__))
        for module in (sys.modules[__name__], attention_tiles, row_kernels, team_tasks, vector_code)
    ),
    team_tasks.SIGNATURE,
)


class RowTable:
    """The rows of a step and where the keys of their contexts lie, for the kernel to read."""

    def __init__(self, rows: Integers, key_slots: Integers, longest: int) -> None:
        """
        ``rows``: [num_rows, ROW_FIELDS], see ``row_kernels``; ``longest``: no path is longer.

        Both arrays are contiguous.
        """
        self.rows = rows
        self._key_slots = key_slots
        self._longest = longest
        self._addresses = rows.ctypes.data, key_slots.ctypes.data

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        arithmetic: ScoreArithmetic,
        window: int | None,
        out: torch.Tensor,
        *,
        alone: bool,
    ) -> None:
        """
        Write what each row attends to  # queries, out: [>= num_rows, heads, dim].

        ``keys``, ``values``: [num_slots, num_kv_heads, dim], those of the rows included. All are
        contiguous float32. The calling thread does it, and unless ``alone`` the others of its team.
        """
        scalars = _Scalars(arithmetic.scaling, arithmetic.softcap or 0.0)
        rows, key_slots = self._addresses
        task = _Task(
            0,
            self.rows.shape[0],
            queries.shape[1],
            *keys.shape[1:],
            keys.shape[0],
            self._key_slots.shape[0],
            self._longest,
            window or 0,
            queries.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            rows,
            key_slots,
            ctypes.addressof(scalars),
            out.data_ptr(),
        )
        run_on_team(_attend_in_parts(), ctypes.addressof(task), alone=alone)
