from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verify_service.targets import matrix_kernel, thread_team
from verify_service.targets.packed_linear import PackedLinear, wait_until_packed

LARGE = (1536, 640)
"""Outputs and inputs of a layer that pays a team of threads."""


def weights(num_outputs: int, num_inputs: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn((num_outputs, num_inputs), generator=generator) * 0.1).half()


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    num_rows=st.integers(0, 70),
    num_outputs=st.integers(1, 70),
    num_inputs=st.integers(1, 90),
    has_bias=st.booleans(),
)
def test_product_of_any_shape_is_that_of_double_precision(
    num_rows: int, num_outputs: int, num_inputs: int, has_bias: bool
) -> None:
    weight, rows = weights(num_outputs, num_inputs), values(num_rows, num_inputs)
    bias = values(num_outputs, seed=2) if has_bias else None

    product = PackedLinear(weight, bias)(rows)

    expected = rows.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(product.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "num_rows", [1, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 17, 59, 60, 61, 63, 64, 65, 66, 125, 131]
)
def test_rows_come_out_the_same_on_one_thread_and_on_several(num_rows: int) -> None:
    """B004: the tile, the group and the thread that computes a row change no bit of it."""
    layer, rows = PackedLinear(weights(*LARGE), None), values(num_rows, LARGE[1])
    former = torch.get_num_threads()
    products = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        products.append(layer(rows))
    torch.set_num_threads(former)

    alone = torch.cat([layer(row[None]) for row in rows])
    assert all(torch.equal(product, alone) for product in products)


@pytest.mark.parametrize("num_rows", [8, 9, 10, 11, 12, 13])
def test_rows_that_share_places_in_the_cache_come_out_the_same(num_rows: int) -> None:
    """Widths that are multiples of 1024 are tiled in another way."""
    layer, rows = PackedLinear(weights(96, 2048), None), values(num_rows, 2048)

    assert torch.equal(layer(rows), torch.cat([layer(row[None]) for row in rows]))


def test_layer_multiplies_for_several_callers_at_once() -> None:
    layer, rows = PackedLinear(weights(*LARGE), None), values(40, LARGE[1])
    expected = layer(rows)

    with ThreadPoolExecutor(4) as callers:
        products = list(callers.map(layer, [rows[: i % 40 + 1] for i in range(200)]))

    for i, product in enumerate(products):
        assert torch.equal(product, expected[: i % 40 + 1])


def test_weights_that_are_not_numbers_stay_in_their_output() -> None:
    weight = weights(40, 20)
    weight[17] = float("inf")
    rows = values(7, 20).abs()

    product = PackedLinear(weight, None)(rows)

    assert torch.isposinf(product[:, 17]).all()
    assert torch.isfinite(product[:, [*range(17), *range(18, 40)]]).all()


@pytest.mark.parametrize("rows", [values(3, 21), values(3, 20).double(), values(2, 10)])
def test_rows_of_another_kind_are_refused(rows: torch.Tensor) -> None:
    """The kernel reads by address: what does not fit must not get there."""
    with pytest.raises(ValueError, match="rows of 20 float32 values are needed"):
        PackedLinear(weights(40, 20), None)(rows)


def test_rows_that_lie_apart_are_multiplied_as_if_side_by_side() -> None:
    layer, wide = PackedLinear(weights(40, 20), None), values(5, 60)

    product = layer(wide[:, 20:40])

    assert torch.equal(product, layer(wide[:, 20:40].contiguous()))


def test_threads_of_our_own_stand_in_for_a_missing_openmp() -> None:
    layer, rows = PackedLinear(weights(*LARGE), None), values(3, LARGE[1])
    wait_until_packed(layer)
    out = torch.empty((3, LARGE[0]))
    no_bias = torch.zeros(LARGE[0])
    task = (ctypes.c_int64 * matrix_kernel.TASK_FIELDS)(
        0,
        LARGE[0] // matrix_kernel.PANEL,
        3,
        LARGE[1],
        rows.data_ptr(),
        layer.packed.data_ptr(),
        no_bias.data_ptr(),
        out.data_ptr(),
    )

    thread_team.fork_anew(matrix_kernel.multiply(), ctypes.addressof(task), 3)

    assert torch.equal(out, layer(rows))


def test_threads_are_those_of_torch() -> None:
    """A second team would compete with torch's for the cores."""
    called: list[int] = []
    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda _: called.append(ctypes.CDLL(None).gettid())
    )
    address = ctypes.cast(note, ctypes.c_void_p).value or 0
    former = torch.get_num_threads()
    torch.set_num_threads(3)
    for _ in range(20):
        thread_team.run_on_team(address, 0)
    torch.set_num_threads(former)

    assert len(called) == 60
    assert len(set(called)) == 3
