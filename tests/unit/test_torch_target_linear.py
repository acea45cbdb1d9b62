from __future__ import annotations

import pytest
import torch

from verify_service.targets.exact_activations import ExactGeluTanh, ExactSilu, exact_activation
from verify_service.targets.packed_linear import (
    AnyLinear,
    Packing,
    PaddedLinear,
    exact_linear,
    padded_rows,
)


def layer(packing: Packing) -> AnyLinear:
    torch.manual_seed(1)
    return exact_linear((torch.randn(96, 200) * 0.1).half(), torch.randn(96), packing)


@pytest.mark.parametrize("packing", ["float32", "packed-fp16"])
def test_row_is_multiplied_alike_among_any_number_of_rows(packing: Packing) -> None:
    """B004: bit for bit, from 1 row to more than two tiles."""
    linear = layer(packing)
    rows = torch.randn(250, 200)

    alone = torch.cat([linear(rows[i : i + 1]) for i in range(250)])

    for count in (*range(1, 40), 63, 64, 119, 120, 121, 122, 127, 250):
        assert torch.equal(linear(rows[:count]), alone[:count])


@pytest.mark.parametrize("packing", ["float32", "packed-fp16"])
def test_product_is_that_of_the_weights(packing: Packing) -> None:
    torch.manual_seed(1)
    weight, bias, rows = (torch.randn(96, 200) * 0.1).half(), torch.randn(96), torch.randn(5, 200)

    product = exact_linear(weight, bias, packing)(rows[None])

    expected = torch.nn.functional.linear(rows, weight.float(), bias)
    torch.testing.assert_close(product[0], expected, atol=1e-5, rtol=0)


def test_weight_beyond_fp16_stays_float32() -> None:
    assert isinstance(exact_linear(torch.tensor([[70000.0]]), None, "packed-fp16"), PaddedLinear)


@pytest.mark.parametrize("packing", ["float32", "packed-fp16"])
def test_padding_is_stable(packing: Packing) -> None:
    counts = [padded_rows(count, packing) for count in range(1, 300)]

    assert all(padded_rows(count, packing) == count for count in counts)
    assert all(count >= wanted for wanted, count in enumerate(counts, 1))


@pytest.mark.parametrize(
    ("plain", "exact"),
    [(torch.nn.SiLU(), ExactSilu), (torch.nn.GELU(approximate="tanh"), ExactGeluTanh)],
)
def test_activation_is_recognised_by_what_it_computes(
    plain: torch.nn.Module, exact: type[torch.nn.Module]
) -> None:
    assert isinstance(exact_activation(plain), exact)


def test_unknown_activation_is_left_alone() -> None:
    assert exact_activation(torch.nn.Softplus()) is None


@pytest.mark.parametrize("activation", [ExactSilu(), ExactGeluTanh()])
def test_activation_of_an_element_does_not_depend_on_its_place(activation: torch.nn.Module) -> None:
    values = torch.randn(1003)

    whole = activation(values)

    assert torch.equal(
        torch.cat([activation(values[i : i + 17]) for i in range(0, 1003, 17)]), whole
    )
