"""Attention of a step on the CPU, row by row: a row's output depends on its own path alone."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from verify_service.targets import row_kernels
from verify_service.targets.attention_kernel import RowTable
from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.kv_cache import LayerKv, Slots, slots_of
from verify_service.targets.row_kernels import NO_PARENT, POSITION
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan

_WORTH_A_TEAM: Final = 1 << 18
"""Products of a query and a key, times their width, that take longer than waking a thread."""


class RowStep:
    """Stores the rows' KV and attends through compiled kernels, on all threads where it pays."""

    def __init__(self, batch: FlatBatch, block_size: int) -> None:
        parts = [
            slots_of(span.block_table, block_size, 0, span.context_len + span.num_rows)
            for span in batch.spans
        ]
        self._table = RowTable(
            np.concatenate(_tables(batch, parts)),
            np.concatenate(parts),
            max(span.context_len + span.num_rows for span in batch.spans),
        )
        self._work_known: dict[int | None, int] = {}

    def attend(
        self,
        kv: LayerKv,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        arithmetic: ScoreArithmetic,
        window: int | None,
    ) -> torch.Tensor:
        """Return what each row attends to; 0 for rows that only pad  # like queries."""
        all_keys, all_values = kv.arrays
        row_kernels.store(
            keys.contiguous().numpy(),
            values.contiguous().numpy(),
            self._table.rows,
            all_keys,
            all_values,
        )
        result = torch.zeros(queries.shape)
        self._table.attend(
            queries.contiguous(),
            kv.keys,
            kv.values,
            arithmetic,
            window,
            result,
            alone=self._work(window) * queries.shape[1] * queries.shape[2] < _WORTH_A_TEAM,
        )
        return result

    def _work(self, window: int | None) -> int:
        """Return how many pairs of a row and a key there are, to be shared out by rows."""
        known = self._work_known.get(window)
        if known is None:
            lengths = self._table.rows[:, POSITION] + 1
            seen = lengths if window is None else np.minimum(lengths, window)
            known = self._work_known[window] = int(seen.sum()) if len(seen) > 1 else 0
        return known


def _tables(batch: FlatBatch, parts: list[Slots]) -> list[Slots]:
    """Return the columns of ``row_kernels`` for each span's rows."""
    tables: list[Slots] = []
    first_row = first_key = 0
    for span, slots in zip(batch.spans, parts, strict=True):
        tables.append(_table(span, slots, first_row, first_key))
        first_row += span.num_rows
        first_key += len(slots)
    return tables


def _table(span: RowSpan, slots: Slots, first_row: int, first_key: int) -> Slots:
    parents = np.array(span.parents, dtype=np.int64)
    columns = (
        slots[span.context_len :],
        np.array(span.positions, dtype=np.int64),
        np.where(parents == CONTEXT, NO_PARENT, parents + first_row),
        np.full(span.num_rows, span.context_len, dtype=np.int64),
        np.full(span.num_rows, first_key, dtype=np.int64),
    )
    return np.ascontiguousarray(np.stack(columns, axis=1))
