"""
An attention layer of a transformers model in the fewest operations.

Queries and keys are normalised and rotated together and handed to tree attention as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from verify_service.targets.attention_step import LayerTraits
from verify_service.targets.head_rotation import RotaryForms, head_rotation
from verify_service.targets.packed_linear import (
    Packing,
    exact_linear,
    joined_linear,
    linear_layers,
)
from verify_service.targets.tree_attention import TreeAttention

_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
_SAMPLE_ROWS = 3


class FusedAttention(torch.nn.Module):
    """Projections, norms, rotation, tree attention and output of one layer."""

    def __init__(
        self,
        original: torch.nn.Module,
        attention: TreeAttention,
        traits: LayerTraits,
        forms: RotaryForms,
        packing: Packing | None,
    ) -> None:
        super().__init__()
        query, key, value, output = (getattr(original, name) for name in _NAMES)
        self._qkv = joined_linear([query, key, value], packing)
        self._output = exact_linear(output.weight, output.bias, packing)
        self._attention = attention
        self._traits = traits
        self.head_dim = traits.shape.head_dim
        self.width = query.in_features
        self._rotation = head_rotation(original, traits, forms, is_exact=packing is not None)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """Return what transformers' layer returns: the output and no weights."""
        traits = self._traits
        rows = self._qkv.forward(hidden_states).view(hidden_states.shape[1], -1, self.head_dim)
        heads = self._rotation.apply(rows, position_embeddings)
        attended = self._attention.attend(
            traits.layer,
            heads[:, : traits.num_heads],
            heads[:, traits.num_heads :],
            rows[:, heads.shape[1] :],
            traits.arithmetic,
            traits.window,
        )
        return self._output.forward(attended.view(1, attended.shape[0], -1)), None


def fused_attention(
    original: torch.nn.Module,
    attention: TreeAttention,
    forms: RotaryForms,
    packing: Packing | None,
) -> FusedAttention | None:
    """Return a layer that computes what ``original`` does, if it is built as expected."""
    linear = linear_layers(original, _NAMES)
    head_dim = getattr(original, "head_dim", None)
    if linear is None or not isinstance(head_dim, int):
        return None
    inputs = sample_inputs(linear[0].weight, head_dim)
    try:
        with attention.measuring() as traits:
            expected = original(**inputs)[0]
        fused = FusedAttention(original, attention, next(iter(traits.values())), forms, packing)
        with attention.measuring():
            output = fused(**inputs)[0]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    agrees = (output - expected).abs().max() <= 0.02 * expected.abs().max()
    return fused if agrees else None


def sample_inputs(like: torch.Tensor, head_dim: int) -> dict[str, Any]:
    """Return fixed rows and angles for a layer with projections ``like``, as its arguments."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((1, _SAMPLE_ROWS, like.shape[1]), generator=generator)
    angles = torch.randn((1, _SAMPLE_ROWS, head_dim // 2), generator=generator).repeat(1, 1, 2)
    return {
        "hidden_states": hidden.to(like),
        "position_embeddings": (angles.cos().to(like), angles.sin().to(like)),
        "attention_mask": None,
    }
