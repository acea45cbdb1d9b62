"""A gated MLP of a transformers model in the fewest operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from verify_service.targets import row_kernels
from verify_service.targets.exact_activations import ExactSilu, exact_activation
from verify_service.targets.packed_linear import (
    Packing,
    exact_linear,
    joined_linear,
    linear_layers,
)
from verify_service.targets.row_operations import gated

_NAMES = ("gate_proj", "up_proj", "down_proj")


class FusedMlp(torch.nn.Module):
    """A gated MLP whose two inner projections are one."""

    def __init__(
        self,
        layers: Sequence[torch.nn.Linear],
        gate: Callable[[torch.Tensor], torch.Tensor],
        packing: Packing | None,
    ) -> None:
        super().__init__()
        first, second, down = layers
        self._inner = joined_linear([first, second], packing)
        self._down = exact_linear(down.weight, down.bias, packing)
        self._gate = gate

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``down(activation(gate) * up)``."""
        return self._down.forward(self._gate(self._inner.forward(hidden_states)))


def fused_mlp(original: torch.nn.Module, packing: Packing | None) -> FusedMlp | None:
    """Return a layer that computes what ``original`` does, if it is built as expected."""
    layers = linear_layers(original, _NAMES)
    activation = getattr(original, "act_fn", None)
    if layers is None or not isinstance(activation, torch.nn.Module):
        return None
    gate = partial(_gated, activation) if packing is None else _exact_gate(activation)
    if gate is None:
        return None
    fused = FusedMlp(layers, gate, packing)
    width = layers[0].in_features
    sample = torch.linspace(-3.0, 2.0, 3 * width).view(1, 3, width).to(layers[0].weight)
    expected = original(sample)
    agrees = (fused(sample) - expected).abs().max() <= 0.02 * expected.abs().max()
    return fused if agrees else None


def _gated(activation: torch.nn.Module, inner: torch.Tensor) -> torch.Tensor:
    gate, values = inner.chunk(2, -1)
    result: torch.Tensor = activation(gate).mul_(values)
    return result


def _exact_gate(activation: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    exact = exact_activation(activation)
    if exact is None:
        return None
    kind = row_kernels.SILU if isinstance(exact, ExactSilu) else row_kernels.GELU_TANH
    return partial(gated, activation=kind)
