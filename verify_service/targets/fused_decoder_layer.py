"""A whole decoder layer of a transformers model on the CPU: little between its matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from verify_service.targets.fused_attention import FusedAttention, sample_inputs
from verify_service.targets.fused_mlp import FusedMlp
from verify_service.targets.fused_norm import FusedRmsNorm
from verify_service.targets.head_rotation import Angles
from verify_service.targets.row_operations import added, normalised
from verify_service.targets.tree_attention import TreeAttention

Norm: TypeAlias = tuple[npt.NDArray[np.float32], float]
"""Weights and eps."""

_NO_NORM: Final[Norm] = (np.empty(0, np.float32), 0.0)
_PARTS: Final = ("self_attn", "mlp")
_BEFORE: Final = ("input_layernorm", "post_attention_layernorm")
_AROUND: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The norms of a layer; those after attention and MLP may be missing."""

    before_attention: Norm
    after_attention: Norm
    before_mlp: Norm
    after_mlp: Norm


class FusedDecoderLayer:
    """What stands in for the ``forward`` of a layer whose parts are fused already."""

    def __init__(self, attention: FusedAttention, mlp: FusedMlp, norms: LayerNorms) -> None:
        self.width, self.head_dim = attention.width, attention.head_dim
        self._attention = attention
        self._mlp = mlp
        self._norms = norms

    def __call__(
        self, hidden_states: torch.Tensor, position_embeddings: Angles, **_: object
    ) -> torch.Tensor:
        """Return the hidden states after the layer  # [1, num_rows, width]."""
        norms = self._norms
        rows = hidden_states.contiguous()
        inner = normalised(rows, *norms.before_attention)
        attended = self._attention.forward(inner, position_embeddings)[0]
        rows = added(rows, attended, norms.after_attention)
        return added(rows, self._mlp.forward(normalised(rows, *norms.before_mlp)), norms.after_mlp)


def fuse_decoder_layers(model: torch.nn.Module, attention: TreeAttention) -> None:
    """Give the layers of ``model`` a shorter way through themselves, where it computes the same."""
    for layer in model.modules():
        fused = _fused(layer)
        if fused is not None and _agrees(fused, layer, attention):
            layer.forward = fused


def _fused(layer: torch.nn.Module) -> FusedDecoderLayer | None:
    parts = dict(layer.named_children())
    attention, mlp = (parts.get(name) for name in _PARTS)
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, FusedMlp):
        return None
    norms = {
        name: (part.array, part.eps)
        for name, part in parts.items()
        if isinstance(part, FusedRmsNorm)
    }
    if set(parts) != {*_PARTS, *norms}:
        return None
    if set(norms) == set(_AROUND):
        return FusedDecoderLayer(attention, mlp, LayerNorms(*(norms[name] for name in _AROUND)))
    if set(norms) == set(_BEFORE):
        first, second = (norms[name] for name in _BEFORE)
        return FusedDecoderLayer(attention, mlp, LayerNorms(first, _NO_NORM, second, _NO_NORM))
    return None


def _agrees(fused: FusedDecoderLayer, layer: torch.nn.Module, attention: TreeAttention) -> bool:
    """Compare on a sample; what a layer wants beyond the usual arguments makes it another one."""
    inputs = sample_inputs(torch.empty((0, fused.width)), fused.head_dim)
    try:
        with attention.measuring():
            expected = layer(**inputs)
            result = fused(**inputs)
    except (AttributeError, TypeError, ValueError):
        return False
    if not isinstance(expected, torch.Tensor):
        return False
    return bool((result - expected).abs().max() <= 1e-3 * expected.abs().max())
