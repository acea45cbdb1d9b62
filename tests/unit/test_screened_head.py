"""A screened head says what all exact products say, however bf16 rounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verify_service.targets import screened_head, screening_kernel
from verify_service.targets.packed_linear import PackedLinear, PaddedLinear
from verify_service.targets.screened_head import ScreenedHead, output_head

pytestmark = pytest.mark.skipif(
    not screening_kernel.multiplies_bf16(), reason="needs a CPU with AVX512_BF16"
)

LARGE = (4000, 640)
"""Outputs and inputs of a head that pays a team of threads."""


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def best_of_all(head: ScreenedHead, rows: torch.Tensor, num_outputs: int) -> list[int | None]:
    products = head(rows)[:, :num_outputs].numpy()
    bests = [int(row.argmax()) for row in products]
    return [
        best if math.isfinite(row[best]) else None
        for row, best in zip(products, bests, strict=True)
    ]


@given(
    num_rows=st.integers(1, 40),
    num_outputs=st.integers(1, 90),
    num_pairs=st.integers(1, 40),
    num_padding=st.integers(0, 40),
    exponent=st.integers(-120, 120),
    shift=st.sampled_from([0.0, -2.0, 2.0]),
    seed=st.integers(0, 1 << 32),
)
def test_best_output_is_that_of_all_exact_products(
    num_rows: int,
    num_outputs: int,
    num_pairs: int,
    num_padding: int,
    exponent: int,
    shift: float,
    seed: int,
) -> None:
    """Padding that would win, rows of any size, products that are all negative."""
    rows = (values(num_rows, 2 * num_pairs, seed=seed) + abs(shift)) * 2.0**exponent
    weight = values(num_outputs + num_padding, 2 * num_pairs, seed=seed + 1) * 0.1 + shift
    weight[num_outputs:] = rows[:1].sign() * 9.0
    head = ScreenedHead(weight)

    assert head.best(rows, num_outputs) == best_of_all(head, rows, num_outputs)


@given(
    num_twins=st.integers(2, 60),
    num_inputs=st.sampled_from([2, 64, 640]),
    step=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 1 << 32),
)
def test_outputs_that_bf16_cannot_tell_apart_are_told_apart(
    num_twins: int, num_inputs: int, step: int, seed: int
) -> None:
    """They differ in bits of fp16 that bf16 has not, or are equal: then the first is best."""
    generator = torch.Generator().manual_seed(seed)
    weight = values(200, num_inputs, seed=seed).mul_(0.1).half()
    twins = torch.randperm(200, generator=generator)[:num_twins]
    changes = torch.randint(-step, step + 1, (num_twins, num_inputs), generator=generator)
    weight[twins] = (weight[twins[:1]].view(torch.int16) + changes.short()).view(torch.float16)
    rows = weight[twins[:1]].float() + values(9, num_inputs, seed=seed + 1) * 0.01
    head = ScreenedHead(weight)

    assert head.best(rows, 200) == best_of_all(head, rows, 200)


@given(
    num_inputs=st.sampled_from([2, 30, 640]),
    weight_exponent=st.integers(-24, 14),
    row_exponent=st.integers(-140, 60),
    seed=st.integers(0, 1 << 32),
)
def test_exact_products_lie_within_the_bounds(
    num_inputs: int, weight_exponent: int, row_exponent: int, seed: int
) -> None:
    """Down to weights that bf16 has no normal numbers for."""
    weight = (values(160, num_inputs, seed=seed).clamp(-2, 2) * 2.0**weight_exponent).half()
    rows = values(7, num_inputs, seed=seed + 1) * 2.0**row_exponent
    head = ScreenedHead(weight)

    maxima, factors = head.rough_maxima(rows)

    norms = head.norms
    bounds = factors @ [norms.weights, norms.left_out] + screened_head.UNDERFLOW
    exact = head(rows).reshape(7, -1, 16).amax(dim=2).numpy()
    assert (abs(maxima - exact) <= bounds).all()


@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 31, 33, 70])
def test_any_number_of_rows_and_threads_gives_the_same_rough_products(num_rows: int) -> None:
    head, rows = ScreenedHead(values(*LARGE)), values(num_rows, LARGE[1])
    former = torch.get_num_threads()
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        found.append(head.rough_maxima(rows)[0])
    torch.set_num_threads(former)

    alone = [head.rough_maxima(row[None])[0][0] for row in rows]
    assert all((maxima == alone).all() for maxima in found)


def test_few_outputs_are_computed_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would cost more than it saves."""
    head, rows = ScreenedHead(values(*LARGE)), values(50, LARGE[1])
    computed: list[int] = []
    multiply = PackedLinear.multiply

    def counted(self: PackedLinear, rows: torch.Tensor, out: int, first: int, last: int) -> None:
        computed.append(last - first)
        multiply(self, rows, out, first, last)

    expected = best_of_all(head, rows, LARGE[0])
    monkeypatch.setattr(PackedLinear, "multiply", counted)

    assert head.best(rows, LARGE[0]) == expected
    assert sum(computed) / 50 < 3


@pytest.mark.parametrize("unusable", [math.nan, math.inf, -math.inf])
def test_row_that_is_no_number_has_no_best_output_and_spoils_no_other(unusable: float) -> None:
    head, rows = ScreenedHead(values(*LARGE)), values(5, LARGE[1])
    rows[2, 7] = unusable

    best = head.best(rows, LARGE[0])

    assert best[2] is None
    assert best == best_of_all(head, rows, LARGE[0])


@pytest.mark.parametrize("row", [torch.zeros(640), torch.full((640,), 1e-40), values(640) * 1e36])
def test_rows_at_the_ends_of_what_float32_holds(row: torch.Tensor) -> None:
    head = ScreenedHead(values(*LARGE))

    assert head.best(row[None], LARGE[0]) == best_of_all(head, row[None], LARGE[0])


def test_rows_that_rule_out_little_are_computed_whole_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by one, each would read all the weights."""
    head, rows = ScreenedHead(values(1, 640).repeat(4000, 1)), values(9, 640)
    rows[3] = 0.0
    num_whole: list[int] = []
    forward = PackedLinear.forward

    def counted(self: PackedLinear, rows: torch.Tensor) -> torch.Tensor:
        num_whole.append(len(rows))
        return forward(self, rows)

    expected = best_of_all(head, rows, 4000)
    monkeypatch.setattr(PackedLinear, "forward", counted)

    assert head.best(rows, 4000) == expected
    assert num_whole == [9]


def test_no_rows_have_no_best_outputs() -> None:
    assert ScreenedHead(values(*LARGE)).best(torch.empty((0, LARGE[1])), LARGE[0]) == []


def test_padding_is_never_best() -> None:
    assert ScreenedHead(-torch.ones(5, 8)).best(torch.ones(1, 8), 16) == [0]


@pytest.mark.parametrize("rows", [values(3, 639), values(3, 640).double()])
def test_rows_of_another_kind_are_refused(rows: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="rows of 640 float32 values are needed"):
        ScreenedHead(values(*LARGE)).best(rows, LARGE[0])


@pytest.mark.parametrize(
    ("weight", "bias", "kind"),
    [
        (torch.ones(300, 40), None, ScreenedHead),
        (torch.ones(300, 40), torch.ones(300), PackedLinear),
        (torch.ones(300, 41), None, PackedLinear),
        (torch.ones(20, 40), None, PackedLinear),
        (torch.ones(300, 40) * 70000.0, None, PaddedLinear),
    ],
)
def test_large_heads_without_bias_are_screened(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    kind: type[torch.nn.Module],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screened_head, "_WORTH_SCREENING", 10000)

    assert type(output_head(weight, bias, "packed-fp16")) is kind


def test_no_head_is_screened_where_the_cpu_has_no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screened_head, "_WORTH_SCREENING", 0)
    monkeypatch.setattr(screening_kernel, "multiplies_bf16", lambda: False)

    assert type(output_head(torch.ones(300, 40), None, "packed-fp16")) is PackedLinear
