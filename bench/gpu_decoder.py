"""
A Llama-shaped decoder with random weights over the product's paged KV, graphs and tree kernel: what
``bench.gpu_step`` measures. It follows no checkpoint and computes nothing of use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verify_service.targets.attention_step import ScoreArithmetic
from verify_service.targets.captured_forward import CapturedForward, GraphMaker, KvRoom
from verify_service.targets.kv_cache import LayerShape, PagedKv
from verify_service.targets.packed_attention import Kernel, PackedStep, Workspace
from verify_service.targets.row_buckets import GraphShape, RowBuckets
from verify_service.targets.static_inputs import StepInputs
from verify_service.targets.tree_kernel import KernelTraits

ROPE_BASE = 500_000.0


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a model."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    block_size: int = 16

    @property
    def traits(self) -> KernelTraits:
        """What its attention layers ask for."""
        scaling = self.head_dim**-0.5
        return KernelTraits(
            self.num_heads, self.num_kv_heads, self.head_dim, self.block_size, scaling
        )


LLAMA_8B = DecoderShape(32, 4096, 32, 8, 128, 14336, 128_256)
TINY = DecoderShape(2, 64, 4, 2, 16, 96, 97, block_size=4)


class Decoder:
    """Random weights and a KV cache."""

    def __init__(
        self, shape: DecoderShape, num_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator(device).manual_seed(7)
        attention_width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self.embedding = self._random(shape.vocab, shape.hidden)
        self.layers = [
            (
                self._random(attention_width, shape.hidden),
                self._random(shape.hidden, shape.num_heads * shape.head_dim),
                self._random(2 * shape.intermediate, shape.hidden),
                self._random(shape.hidden, shape.intermediate),
            )
            for _ in range(shape.num_layers)
        ]
        self.head = self._random(shape.vocab, shape.hidden)
        kv_shape = LayerShape(shape.num_kv_heads, shape.head_dim)
        self.kv = PagedKv(
            [kv_shape] * shape.num_layers,
            num_blocks,
            shape.block_size,
            dtype=dtype,
            device=device,
        )
        self._rotations = _rotations(num_blocks * shape.block_size, shape.head_dim, device)

    @property
    def step_bytes(self) -> int:
        """Weight bytes that every step reads; of the embedding it reads single rows."""
        weights = [self.head, *(weight for layer in self.layers for weight in layer)]
        return sum(weight.numel() * weight.element_size() for weight in weights)

    def forward(self, inputs: StepInputs, step: PackedStep) -> torch.Tensor:
        """Store the rows' KV and return the logits of the wanted rows  # [num_rows, vocab]."""
        hidden = self.embedding[inputs.token_ids]
        cosine, sine = (part[inputs.kernel.positions] for part in self._rotations)
        for index, (qkv, out, gate_up, down) in enumerate(self.layers):
            rows = _normed(hidden) @ qkv.T
            mixed = self._attend(index, rows, (cosine, sine), step)
            hidden = hidden + mixed @ out.T
            gate, up = (_normed(hidden) @ gate_up.T).chunk(2, -1)
            hidden = hidden + (torch.nn.functional.silu(gate) * up) @ down.T
        return _normed(hidden[inputs.logit_rows]) @ self.head.T

    def _attend(
        self,
        layer: int,
        rows: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        step: PackedStep,
    ) -> torch.Tensor:
        shape = self.shape
        heads = rows.view(rows.shape[0], -1, shape.head_dim)
        num_turned = shape.num_heads + shape.num_kv_heads
        turned = _rotated(heads[:, :num_turned], *rotation)
        mixed = step.attend(
            self.kv.layers[layer],
            turned[:, : shape.num_heads],
            turned[:, shape.num_heads :],
            heads[:, num_turned:],
            ScoreArithmetic(shape.head_dim**-0.5, None),
            None,
        )
        return mixed.reshape(rows.shape[0], -1)

    def _random(self, height: int, width: int) -> torch.Tensor:
        weight = torch.empty((height, width), dtype=self.dtype, device=self.device)
        return weight.normal_(std=width**-0.5, generator=self._generator)


class DecoderGraphs:
    """The product's captured forward pass around a decoder."""

    def __init__(
        self,
        decoder: Decoder,
        buckets: RowBuckets,
        max_blocks: int,
        graphs: GraphMaker,
        kernel: Kernel,
    ) -> None:
        self._decoder = decoder
        self._kernel = kernel
        shapes = tuple(buckets.shapes())
        self._workspace = Workspace([decoder.shape.traits], shapes, decoder.device)
        self._logits = torch.zeros(
            (buckets.max_rows, decoder.shape.vocab), dtype=torch.float32, device=decoder.device
        )
        room = KvRoom(decoder.shape.block_size, decoder.kv.spare_slot, max_blocks)
        self.captured = CapturedForward(self._compute, buckets, room, graphs, decoder.device)

    def _compute(self, inputs: StepInputs, shape: GraphShape) -> torch.Tensor:
        block_size = self._decoder.shape.block_size
        step = PackedStep(inputs, shape, block_size, self._workspace, self._kernel)
        logits = self._decoder.forward(inputs, step)
        return self._logits[: shape.num_rows].copy_(logits)


def _normed(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(rows, (rows.shape[-1],))


def _rotations(
    length: int, head_dim: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles = torch.arange(length, device=device)[:, None] * ROPE_BASE**-exponents
    return angles.cos(), angles.sin()


def _rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    left, right = heads.float().chunk(2, -1)
    cosine, sine = cosine[:, None], sine[:, None]
    turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)
    return turned.to(heads.dtype).contiguous()
