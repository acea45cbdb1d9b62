from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verify_service.targets.attention_kernel import RowTable
from verify_service.targets.attention_step import ScoreArithmetic

GAP = 3
"""Slots of others before the first one of the sequence."""


class Case:
    """A chain of rows behind a context, its keys and values in the slots from ``GAP`` on."""

    def __init__(
        self, num_rows: int, context_len: int, num_heads: int, num_kv_heads: int, dim: int
    ) -> None:
        generator = torch.Generator().manual_seed(num_rows + 7 * context_len)
        num_keys = context_len + num_rows
        self.context_len = context_len
        self.queries = torch.randn((num_rows, num_heads, dim), generator=generator)
        self.keys = torch.randn((GAP + num_keys, num_kv_heads, dim), generator=generator)
        self.values = torch.randn((GAP + num_keys, num_kv_heads, dim), generator=generator)

    def attend(
        self, rows: slice, arithmetic: ScoreArithmetic, window: int | None, *, alone: bool = True
    ) -> torch.Tensor:
        """Return what some of the rows attend to, computed in one call."""
        numbers = range(len(self.queries))[rows]
        table = [
            (
                GAP + self.context_len + row,
                self.context_len + row,
                place - 1,
                self.context_len + numbers[0],
                0,
            )
            for place, row in enumerate(numbers)
        ]
        slots = np.arange(GAP, len(self.keys), dtype=np.int64)
        queries = self.queries[rows].contiguous()
        out = torch.zeros(queries.shape)
        RowTable(np.array(table, dtype=np.int64), slots, len(slots)).attend(
            queries, self.keys, self.values, arithmetic, window, out, alone=alone
        )
        return out

    def expected(self, arithmetic: ScoreArithmetic, window: int | None) -> torch.Tensor:
        """Return the same of all rows in double precision."""
        size = self.queries.shape[1] // self.keys.shape[1]
        keys = self.keys.double().repeat_interleave(size, dim=1)
        values = self.values.double().repeat_interleave(size, dim=1)
        rows = []
        for row, queries in enumerate(self.queries.double()):
            last = GAP + self.context_len + row + 1
            first = GAP if window is None else max(GAP, last - window)
            scores = torch.einsum("hd,khd->hk", queries, keys[first:last]) * arithmetic.scaling
            if arithmetic.softcap:
                scores = arithmetic.softcap * torch.tanh(scores / arithmetic.softcap)
            weights = torch.softmax(scores, dim=1)
            rows.append(torch.einsum("hk,khd->hd", weights, values[first:last]))
        return torch.stack(rows)


@given(
    num_rows=st.integers(1, 9),
    context_len=st.integers(0, 40),
    size=st.integers(1, 9),
    num_kv_heads=st.integers(1, 3),
    dim=st.sampled_from([8, 16, 24, 32, 48, 64, 80, 256]),
    window=st.none() | st.integers(1, 30),
    softcap=st.none() | st.just(20.0),
)
def test_attention_of_any_shape_is_that_of_double_precision(
    num_rows: int,
    context_len: int,
    size: int,
    num_kv_heads: int,
    dim: int,
    window: int | None,
    softcap: float | None,
) -> None:
    case = Case(num_rows, context_len, size * num_kv_heads, num_kv_heads, dim)
    arithmetic = ScoreArithmetic(dim**-0.5, softcap)

    attended = case.attend(slice(None), arithmetic, window)

    expected = case.expected(arithmetic, window)
    torch.testing.assert_close(attended.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dim", [24, 64, 256])
@pytest.mark.parametrize("num_heads", [1, 3, 4, 7])
def test_rows_attend_alike_alone_and_beside_others(num_heads: int, dim: int) -> None:
    """B004: neither the rows beside it nor the thread changes a bit of a row."""
    case = Case(11, 37, num_heads, 1, dim)
    arithmetic = ScoreArithmetic(dim**-0.5, None)
    together = case.attend(slice(None), arithmetic, None)

    alone = [case.attend(slice(row, row + 1), arithmetic, None) for row in range(11)]

    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(case.attend(slice(None), arithmetic, None, alone=False), together)
