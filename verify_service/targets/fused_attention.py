"""
An attention layer of a transformers model in the fewest operations.

Queries and keys are normalised and rotated together and handed to tree attention as they are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch.nn import functional

from verify_service.targets.fused_norm import device_norm, fused_norm, normalised
from verify_service.targets.packed_linear import (
    Packing,
    exact_linear,
    joined_linear,
    linear_layers,
)
from verify_service.targets.tree_attention import LayerTraits, TreeAttention

_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
_SAMPLE_ROWS = 3


class RotaryTables:
    """Cosines and sines as the fused layers want them; made once per step and kind of layer."""

    def __init__(self) -> None:
        self._recent: deque[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = deque(maxlen=4)

    def prepared(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines  # [1, num_rows, width] -> [num_rows, 1, width]."""
        for known, prepared_cos, prepared_sin in self._recent:
            if known is cos:
                return prepared_cos, prepared_sin
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        self._recent.appendleft((cos, cos[0, :, None], signed[0, :, None]))
        return cos[0, :, None], signed[0, :, None]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norms of query and key heads in one."""

    weight: torch.Tensor  # [num_heads + num_kv_heads, head_dim]
    eps: float
    is_exact: bool

    def apply(self, heads: torch.Tensor) -> torch.Tensor:
        """Normalise every head  # [num_rows, num_heads + num_kv_heads, head_dim]."""
        if self.is_exact:
            return normalised(heads, self.weight, self.eps)
        return functional.rms_norm(heads, self.weight.shape[-1:], None, self.eps).mul_(self.weight)


class FusedAttention(torch.nn.Module):
    """Projections, norms, rotation, tree attention and output of one layer."""

    def __init__(
        self,
        original: torch.nn.Module,
        attention: TreeAttention,
        traits: LayerTraits,
        tables: RotaryTables,
        packing: Packing | None,
    ) -> None:
        super().__init__()
        query, key, value, output = (getattr(original, name) for name in _NAMES)
        self._qkv = joined_linear([query, key, value], packing)
        self._output = exact_linear(output.weight, output.bias, packing)
        self._attention = attention
        self._traits = traits
        self._head_dim = traits.shape.head_dim
        self._tables = tables
        self._norm = _head_norm(original, traits, is_exact=packing is not None)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """Return what transformers' layer returns: the output and no weights."""
        traits = self._traits
        rows = self._qkv.forward(hidden_states).view(hidden_states.shape[1], -1, self._head_dim)
        num_rotated = traits.num_heads + traits.shape.num_kv_heads
        heads = rows[:, :num_rotated]
        if self._norm is not None:
            heads = self._norm.apply(heads)
        cos, sin = self._tables.prepared(*position_embeddings)
        turned = heads.roll(self._head_dim // 2, -1).mul_(sin)
        heads.mul_(cos).add_(turned)
        attended = self._attention.attend(
            traits.layer,
            heads[:, : traits.num_heads],
            heads[:, traits.num_heads :],
            rows[:, num_rotated:],
            traits.arithmetic,
            traits.window,
        )
        return self._output.forward(attended.view(1, attended.shape[0], -1)), None


def fused_attention(
    original: torch.nn.Module,
    attention: TreeAttention,
    tables: RotaryTables,
    packing: Packing | None,
) -> FusedAttention | None:
    """Return a layer that computes what ``original`` does, if it is built as expected."""
    linear = linear_layers(original, _NAMES)
    head_dim = getattr(original, "head_dim", None)
    if linear is None or not isinstance(head_dim, int):
        return None
    like = linear[0].weight
    try:
        with attention.measuring() as traits:
            expected = _sample_output(original, like, head_dim)
        fused = FusedAttention(original, attention, next(iter(traits.values())), tables, packing)
        with attention.measuring():
            output = _sample_output(fused, like, head_dim)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    agrees = (output - expected).abs().max() <= 0.02 * expected.abs().max()
    return fused if agrees else None


def _sample_output(module: torch.nn.Module, like: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return what a layer whose weights are ``like`` gives for fixed rows and angles."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((1, _SAMPLE_ROWS, like.shape[1]), generator=generator)
    angles = torch.randn((1, _SAMPLE_ROWS, head_dim // 2), generator=generator).repeat(1, 1, 2)
    output: torch.Tensor = module(
        hidden_states=hidden.to(like),
        position_embeddings=(angles.cos().to(like), angles.sin().to(like)),
        attention_mask=None,
    )[0]
    return output


def _head_norm(
    original: torch.nn.Module, traits: LayerTraits, *, is_exact: bool
) -> HeadNorm | None:
    """Return the norms of query and key heads; raises ``ValueError`` where they do not fit."""
    parts = [getattr(original, name, None) for name in ("q_norm", "k_norm")]
    if parts == [None, None]:
        return None
    make = fused_norm if is_exact else device_norm
    norms = [make(part) for part in parts if part is not None]
    query, key = (norm for norm in norms if norm is not None)
    shape = traits.shape
    if query.eps != key.eps or {query.weight.shape, key.weight.shape} != {(shape.head_dim,)}:
        raise ValueError("the norms of queries and keys differ")
    return HeadNorm(
        torch.cat(
            [query.weight.expand(traits.num_heads, -1), key.weight.expand(shape.num_kv_heads, -1)]
        ),
        query.eps,
        is_exact,
    )
