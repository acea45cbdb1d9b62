"""
Replaces modules of a transformers model by faster ones that compute the same.

Every replacement is found by its structure and, where that leaves doubt, by trying it: a module
that is not recognised stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from verify_service.targets.exact_activations import exact_activation
from verify_service.targets.fused_attention import RotaryTables, fused_attention
from verify_service.targets.fused_norm import device_norm, fused_norm
from verify_service.targets.packed_linear import (
    Packing,
    exact_linear,
    joined_linear,
    linear_layers,
)
from verify_service.targets.tree_attention import TreeAttention

_ACTIVATION_NAMES = ("act_fn", "activation_fn", "act", "activation")
_MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
_SMALL_TABLE = 4096


def fuse_layers(model: PreTrainedModel, attention: TreeAttention, packing: Packing | None) -> None:
    """
    Replace whole attention and MLP layers where possible, then what is left, throughout.

    Without ``packing`` nothing has to be exact: only what saves operations is replaced.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
    if packing is not None and type(head) is torch.nn.Linear:
        # The largest by far: another thread packs it while the layers are fused.
        packed_head = exact_linear(head.weight, head.bias, packing)
        model.set_output_embeddings(packed_head)  # type: ignore[no-untyped-call]  # transformers
    _fuse_whole_layers(model, attention, packing)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = _replacement(name, child, packing)
            if replacement is not None:
                setattr(parent, name, replacement)
    model.requires_grad_(requires_grad=False)


def _fuse_whole_layers(
    model: PreTrainedModel, attention: TreeAttention, packing: Packing | None
) -> None:
    tables = RotaryTables()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fused = fused_attention(child, attention, tables, packing) or _fused_mlp(child, packing)
            if fused is not None:
                setattr(parent, name, fused)
                if packing is None:
                    _release(child)


def _release(replaced: torch.nn.Module) -> None:
    """Free weights that were joined: a device has no room for all of them twice."""
    for parameter in replaced.parameters():
        parameter.data = parameter.data.new_empty(0)


class FusedMlp(torch.nn.Module):
    """A gated MLP whose two inner projections are one."""

    def __init__(
        self,
        layers: Sequence[torch.nn.Linear],
        activation: torch.nn.Module,
        packing: Packing | None,
    ) -> None:
        super().__init__()
        gate, up, down = layers
        self._inner = joined_linear([gate, up], packing)
        self._down = exact_linear(down.weight, down.bias, packing)
        self._width = down.in_features
        self._activation = activation

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``down(activation(gate) * up)``."""
        inner = self._inner.forward(hidden_states)
        gated = self._activation(inner[..., : self._width])
        return self._down.forward(gated.mul_(inner[..., self._width :]))


class HalfEmbedding(torch.nn.Module):
    """An embedding table kept as fp16, the values that a tied output head multiplies with."""

    def __init__(self, weight: torch.Tensor, scale: float) -> None:
        super().__init__()
        self._weight = weight.detach().to(torch.float16)
        self._scale = scale

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return float32 embeddings  # [...] -> [..., width]."""
        return functional.embedding(token_ids, self._weight).float().mul_(self._scale)


def _fused_mlp(original: torch.nn.Module, packing: Packing | None) -> FusedMlp | None:
    layers = linear_layers(original, _MLP_NAMES)
    activation = getattr(original, "act_fn", None)
    if layers is None or not isinstance(activation, torch.nn.Module):
        return None
    chosen = activation if packing is None else exact_activation(activation)
    if chosen is None:
        return None
    fused = FusedMlp(layers, chosen, packing)
    width = layers[0].in_features
    sample = torch.linspace(-3.0, 2.0, 3 * width).view(1, 3, width).to(layers[0].weight)
    expected = original(sample)
    agrees = (fused(sample) - expected).abs().max() <= 0.02 * expected.abs().max()
    return fused if agrees else None


def _replacement(
    name: str, child: torch.nn.Module, packing: Packing | None
) -> torch.nn.Module | None:
    if packing is None:
        return device_norm(child) if type(child).__name__.endswith("RMSNorm") else None
    if type(child) is torch.nn.Linear:
        return exact_linear(child.weight, child.bias, packing)
    if type(child) is Conv1D:
        return exact_linear(child.weight.t(), child.bias, packing)
    if type(child).__name__.endswith("RMSNorm"):
        return fused_norm(child)
    if name in _ACTIVATION_NAMES:
        return exact_activation(child)
    if isinstance(child, torch.nn.Embedding) and packing == "packed-fp16":
        return _half_embedding(child)
    return None


def _half_embedding(table: torch.nn.Embedding) -> torch.nn.Module | None:
    """Small tables, such as those of positions, stay; scaled ones keep their scale."""
    scale = getattr(table, "scalar_embed_scale", 1.0)
    if table.num_embeddings < _SMALL_TABLE or not isinstance(scale, float):
        return None
    sample = torch.arange(8)
    plain = functional.embedding(sample, table.weight) * scale
    return HalfEmbedding(table.weight, scale) if torch.allclose(table(sample), plain) else None
