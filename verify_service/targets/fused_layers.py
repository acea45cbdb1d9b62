"""
Replaces modules of a transformers model by faster ones that compute the same.

Every replacement is found by its structure and, where that leaves doubt, by trying it: a module
that is not recognised stays as it is.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from verify_service.targets.exact_activations import exact_activation
from verify_service.targets.fused_attention import fused_attention
from verify_service.targets.fused_decoder_layer import fuse_decoder_layers
from verify_service.targets.fused_mlp import fused_mlp
from verify_service.targets.fused_norm import device_norm, fused_norm
from verify_service.targets.head_rotation import RotaryForms
from verify_service.targets.packed_linear import Packing, exact_linear
from verify_service.targets.screened_head import output_head
from verify_service.targets.tree_attention import TreeAttention

_ACTIVATION_NAMES = ("act_fn", "activation_fn", "act", "activation")
_SMALL_TABLE = 4096


def fuse_layers(model: PreTrainedModel, attention: TreeAttention, packing: Packing | None) -> None:
    """
    Replace whole attention and MLP layers where possible, then what is left, throughout.

    Without ``packing`` nothing has to be exact: only what saves operations is replaced.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
    if packing is not None and type(head) is torch.nn.Linear:
        # The largest by far: another thread packs it while the layers are fused.
        packed_head = output_head(head.weight, head.bias, packing)
        model.set_output_embeddings(packed_head)  # type: ignore[no-untyped-call]  # transformers
    _fuse_whole_layers(model, attention, packing)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = _replacement(name, child, packing)
            if replacement is not None:
                setattr(parent, name, replacement)
    if packing is not None:
        fuse_decoder_layers(model, attention)
    model.requires_grad_(requires_grad=False)


def _fuse_whole_layers(
    model: PreTrainedModel, attention: TreeAttention, packing: Packing | None
) -> None:
    forms = RotaryForms()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fused = fused_attention(child, attention, forms, packing) or fused_mlp(child, packing)
            if fused is not None:
                setattr(parent, name, fused)
                if packing is None:
                    _release(child)


def _release(replaced: torch.nn.Module) -> None:
    """Free weights that were joined: a device has no room for all of them twice."""
    for parameter in replaced.parameters():
        parameter.data = parameter.data.new_empty(0)


class HalfEmbedding(torch.nn.Module):
    """An embedding table kept as fp16, the values that a tied output head multiplies with."""

    def __init__(self, weight: torch.Tensor, scale: float) -> None:
        super().__init__()
        self._weight = weight.detach().to(torch.float16)
        self._scale = scale

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return float32 embeddings  # [...] -> [..., width]."""
        return functional.embedding(token_ids, self._weight).float().mul_(self._scale)


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
