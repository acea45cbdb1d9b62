"""The compiled row kernels beside plain arithmetic in double precision."""

from __future__ import annotations

import re

import numba
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_service.targets import row_kernels
from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.kv_cache import LayerKv
from verify_service.targets.matrix_kernel import converts_fp16
from verify_service.targets.row_attention import RowStep
from verify_service.targets.row_operations import added, gated, normalised, rotated
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan

BLOCK_SIZE = 4
WIDTHS = st.sampled_from([1, 2, 7, 8, 24, 33, 64])


def reals(seed: int, *shape: int) -> torch.Tensor:
    """Return normal numbers  # shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(num_rows=st.integers(1, 5), width=WIDTHS, seed=st.integers(0, 99))
def test_norm_is_the_root_mean_square_norm(num_rows: int, width: int, seed: int) -> None:
    rows, weight = reals(seed, num_rows, width), reals(seed + 1, width)

    result = normalised(rows, weight.numpy(), 1e-6)

    expected = torch.nn.functional.rms_norm(rows.double(), (width,), weight.double(), 1e-6)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-6)


@given(num_rows=st.integers(1, 4), width=WIDTHS, has_norm=st.booleans(), seed=st.integers(0, 99))
def test_what_is_added_is_normalised_first(
    num_rows: int, width: int, has_norm: bool, seed: int
) -> None:
    residual, change = reals(seed, num_rows, width), reals(seed + 1, num_rows, width)
    weight = reals(seed + 2, width) if has_norm else torch.empty(0)

    result = added(residual, change, (weight.numpy(), 1e-6))

    expected = change.double()
    if has_norm:
        expected = torch.nn.functional.rms_norm(expected, (width,), weight.double(), 1e-6)
    torch.testing.assert_close(result.double(), residual + expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        (row_kernels.SILU, torch.nn.SiLU()),
        (row_kernels.GELU_TANH, torch.nn.GELU(approximate="tanh")),
    ],
)
def test_gate_is_the_activation_wherever_it_is_finite(
    kind: int, activation: torch.nn.Module
) -> None:
    gates = torch.cat([torch.linspace(-40, 40, 801), torch.tensor([0.0, -1e4, 1e4, 1e-30])])[None]

    result = gated(torch.cat([gates, torch.ones_like(gates)], dim=-1), kind)

    torch.testing.assert_close(result.double(), activation(gates.double()), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not converts_fp16(), reason="this CPU has no vector code to speak of")
def test_exponential_compiles_to_vector_code_in_a_loop() -> None:
    """Rounding by a function once converted number by number, four times as slow."""

    def exponentials(values: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
        for i in range(out.shape[0]):
            out[i] = row_kernels.exp(values[i])

    compiled = numba.njit("void(f4[::1], f4[::1])", error_model="numpy")(exponentials)
    (code,) = compiled.inspect_llvm().values()

    assert re.search(r"fmul contract <\d+ x float>", code)
    assert "fptosi" not in code


@pytest.mark.parametrize("kind", [row_kernels.SILU, row_kernels.GELU_TANH])
def test_gate_passes_on_what_is_not_a_number(kind: int) -> None:
    inner = torch.full((1, 16), float("nan"))

    assert gated(inner, kind).isnan().all()


@given(
    num_rows=st.integers(1, 4),
    half=st.integers(1, 17),
    has_norm=st.booleans(),
    seed=st.integers(0, 99),
)
def test_heads_are_normalised_and_rotated(
    num_rows: int, half: int, has_norm: bool, seed: int
) -> None:
    heads, angles = reals(seed, num_rows, 5, 2 * half), reals(seed + 1, 1, num_rows, half)
    cos, sin = angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)
    norm = reals(seed + 2, 3, 2 * half) if has_norm else torch.empty((0, 0))

    result = rotated(heads, 3, norm.numpy(), 1e-6, (cos[0].numpy(), sin[0].numpy()))

    kept = heads[:, :3].double()
    if has_norm:
        kept = torch.nn.functional.rms_norm(kept, (2 * half,), None, 1e-6) * norm
    low, high = kept[..., :half], kept[..., half:]
    expected = kept * cos[0, :, None] + torch.cat([-high, low], dim=-1) * sin[0, :, None]
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)


@st.composite
def spans(draw: st.DrawFn) -> RowSpan:
    """Draw a tree over a stored context, in blocks in any order."""
    context_len, num_rows = draw(st.integers(0, 21)), draw(st.integers(1, 9))
    parents = [draw(st.integers(CONTEXT, row - 1)) for row in range(num_rows)]
    positions: list[int] = []
    for parent in parents:
        positions.append(context_len if parent == CONTEXT else positions[parent] + 1)
    return RowSpan(
        token_ids=(0,) * num_rows,
        positions=tuple(positions),
        parents=tuple(parents),
        context_len=context_len,
        block_table=tuple(draw(st.permutations(range(8)))),
        logit_rows=(),
    )


@settings(deadline=None)
@given(
    batch=st.lists(spans(), min_size=1, max_size=3),
    num_kv_heads=st.integers(1, 2),
    size=st.sampled_from([1, 2, 4, 5]),
    dim=st.sampled_from([4, 8, 33]),
    window=st.sampled_from([None, 1, 3, 16]),
    softcap=st.sampled_from([None, 2.0]),
)
def test_attention_sees_the_own_path_and_nothing_else(
    batch: list[RowSpan],
    num_kv_heads: int,
    size: int,
    dim: int,
    window: int | None,
    softcap: float | None,
) -> None:
    """What others left in the cache, NaN here, reaches nobody."""
    batch = [_moved(span, 8 * index) for index, span in enumerate(batch)]
    num_rows = sum(span.num_rows for span in batch)
    queries = reals(1, num_rows, num_kv_heads * size, dim)
    keys, values = reals(2, num_rows, num_kv_heads, dim), reals(3, num_rows, num_kv_heads, dim)
    kv = _cache(batch, num_kv_heads, dim)
    arithmetic = ScoreArithmetic(0.3, softcap)

    result = RowStep(FlatBatch(tuple(batch)), BLOCK_SIZE).attend(
        kv, queries, keys, values, arithmetic, window
    )

    expected = _plain(batch, kv, queries, arithmetic, window)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_rows_shared_out_over_threads_keep_their_bits() -> None:
    num_rows, context_len = 96, 400
    span = RowSpan(
        token_ids=(0,) * num_rows,
        positions=tuple(range(context_len, context_len + num_rows)),
        parents=tuple(range(CONTEXT, num_rows - 1)),
        context_len=context_len,
        block_table=tuple(range(124)),
        logit_rows=(),
    )
    queries, keys, values = reals(1, 96, 4, 64), reals(2, 96, 1, 64), reals(3, 96, 1, 64)
    kv = LayerKv(reals(4, 497, 1, 64), reals(5, 497, 1, 64))
    results = []
    num_threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            step = RowStep(FlatBatch((span,)), BLOCK_SIZE)
            results.append(
                step.attend(kv, queries, keys, values, ScoreArithmetic(0.125, None), None)
            )
    finally:
        torch.set_num_threads(num_threads)

    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def _moved(span: RowSpan, first_block: int) -> RowSpan:
    return RowSpan(
        span.token_ids,
        span.positions,
        span.parents,
        span.context_len,
        tuple(first_block + block for block in span.block_table),
        span.logit_rows,
    )


def _cache(batch: list[RowSpan], num_kv_heads: int, dim: int) -> LayerKv:
    shape = (len(batch) * 8 * BLOCK_SIZE + 1, num_kv_heads, dim)
    keys, values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    for span in batch:
        for index in range(span.context_len):
            slot = _slot(span, index)
            keys[slot], values[slot] = reals(slot, *shape[1:]), reals(slot + 1000, *shape[1:])
    return LayerKv(keys, values)


def _slot(span: RowSpan, index: int) -> int:
    return span.block_table[index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE


def _path(span: RowSpan, row: int, window: int | None) -> list[int]:
    path = []
    ancestor = row
    while ancestor != CONTEXT:
        path.append(span.context_len + ancestor)
        ancestor = span.parents[ancestor]
    whole = [*range(span.context_len), *reversed(path)]
    return [_slot(span, index) for index in (whole if window is None else whole[-window:])]


def _plain(
    batch: list[RowSpan],
    kv: LayerKv,
    queries: torch.Tensor,
    arithmetic: ScoreArithmetic,
    window: int | None,
) -> npt.NDArray[np.float64]:
    results = []
    size = queries.shape[1] // kv.keys.shape[1]
    paths = [_path(span, row, window) for span in batch for row in range(span.num_rows)]
    for query, path in zip(queries.double(), paths, strict=True):
        keys = kv.keys[path].double().repeat_interleave(size, dim=1)
        values = kv.values[path].double().repeat_interleave(size, dim=1)
        scores = torch.einsum("hd,jhd->hj", query, keys) * arithmetic.scaling
        if arithmetic.softcap is not None:
            scores = arithmetic.softcap * (scores / arithmetic.softcap).tanh()
        results.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), values).numpy())
    return np.stack(results)
