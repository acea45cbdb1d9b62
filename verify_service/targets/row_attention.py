"""Attention of a step on the CPU, row by row: a row's output depends on its own path alone."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import torch

from verify_service.targets import row_kernels
from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.kv_cache import LayerKv, Slots, slots_of
from verify_service.targets.row_kernels import NO_PARENT, POSITION
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan

_THREADS: Final = ThreadPoolExecutor(thread_name_prefix="attend")
_WORTH_A_THREAD: Final = 1 << 20
"""Products of a query and a key, times their width, that take longer than waking a thread."""


class RowStep:
    """Stores the rows' KV and attends through the compiled kernels, on several cores if it pays."""

    def __init__(self, batch: FlatBatch, block_size: int) -> None:
        parts = [
            slots_of(span.block_table, block_size, 0, span.context_len + span.num_rows)
            for span in batch.spans
        ]
        self._key_slots: Slots = np.concatenate(parts)
        self._rows: Slots = np.concatenate(_tables(batch, parts))
        self._longest = max(span.context_len + span.num_rows for span in batch.spans)
        self._shares_known: dict[tuple[int, int | None], list[tuple[int, int]]] = {}

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
            self._rows,
            all_keys,
            all_values,
        )
        result = torch.zeros(queries.shape)
        query_rows, result_rows = queries.contiguous().numpy(), result.numpy()

        def attend(start: int, stop: int) -> None:
            row_kernels.attend(
                query_rows,
                all_keys,
                all_values,
                self._rows,
                self._key_slots,
                start,
                stop,
                self._longest,
                arithmetic.scaling,
                arithmetic.softcap or 0.0,
                window or 0,
                result_rows,
            )

        first, *others = self._shares(queries.shape[1] * queries.shape[2], window)
        started = [_THREADS.submit(attend, *share) for share in others]
        attend(*first)
        for each in started:
            each.result()
        return result

    def _shares(self, width: int, window: int | None) -> list[tuple[int, int]]:
        """Return runs of rows of about the same work, one for each core that it pays."""
        known = self._shares_known.get((width, window))
        if known is None:
            known = self._shares_known[width, window] = self._split(width, window)
        return known

    def _split(self, width: int, window: int | None) -> list[tuple[int, int]]:
        lengths = self._rows[:, POSITION] + 1
        work = np.cumsum(lengths if window is None else np.minimum(lengths, window))
        worth = int(work[-1]) * width // _WORTH_A_THREAD
        count = min(torch.get_num_threads(), worth, len(work))
        if count <= 1:
            return [(0, len(work))]
        wanted = work[-1] * np.arange(1, count) // count
        borders = [0, *np.searchsorted(work, wanted).tolist(), len(work)]
        return list(itertools.pairwise(borders))


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
