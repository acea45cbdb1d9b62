"""
A Llama-shaped decoder with random weights over the product's paged KV, tree kernel and graph
buckets: what ``bench.gpu_step`` measures. It follows no checkpoint and computes nothing of use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from verify_service.targets.kv_cache import LayerShape, PagedKv
from verify_service.targets.row_buckets import GraphShape
from verify_service.targets.target import FlatBatch
from verify_service.targets.tree_kernel import (
    KernelInputs,
    KernelTraits,
    Partials,
    attend,
    attend_reference,
)
from verify_service.targets.tree_kernel_inputs import InputLayout, pack

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
        self.spare_slot = num_blocks * shape.block_size
        self._rotations = _rotations(num_blocks * shape.block_size, shape.head_dim, device)

    @property
    def step_bytes(self) -> int:
        """Weight bytes that every step reads; of the embedding it reads single rows."""
        weights = [self.head, *(weight for layer in self.layers for weight in layer)]
        return sum(weight.numel() * weight.element_size() for weight in weights)

    def forward(
        self, token_ids: torch.Tensor, slots: torch.Tensor, inputs: KernelInputs, partials: Partials
    ) -> torch.Tensor:
        """Store the rows' KV and return their logits  # [num_rows, vocab]."""
        hidden = self.embedding[token_ids]
        cosine, sine = (part[inputs.positions] for part in self._rotations)
        for index, (qkv, out, gate_up, down) in enumerate(self.layers):
            rows = _normed(hidden) @ qkv.T
            mixed = self._attend(index, rows, slots, (cosine, sine), inputs, partials)
            hidden = hidden + mixed @ out.T
            gate, up = (_normed(hidden) @ gate_up.T).chunk(2, -1)
            hidden = hidden + (torch.nn.functional.silu(gate) * up) @ down.T
        return _normed(hidden) @ self.head.T

    def _attend(
        self,
        layer: int,
        rows: torch.Tensor,
        slots: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        inputs: KernelInputs,
        partials: Partials,
    ) -> torch.Tensor:
        shape = self.shape
        heads = rows.view(rows.shape[0], -1, shape.head_dim)
        num_queries, num_keys = shape.num_heads, shape.num_kv_heads
        queries, keys = heads[:, :num_queries], heads[:, num_queries : num_queries + num_keys]
        values = heads[:, num_queries + num_keys :]
        queries, keys = _rotated(queries, *rotation), _rotated(keys, *rotation)
        kv = self.kv.layers[layer]
        kv.write(slots, keys, values)
        mixed = torch.zeros_like(queries)
        if self.device.type == "cuda":
            attend(queries, kv.keys, kv.values, inputs, shape.traits, partials, mixed)
        else:
            attend_reference(queries, kv.keys, kv.values, inputs, shape.traits, mixed)
        return mixed.reshape(rows.shape[0], -1)

    def _random(self, height: int, width: int) -> torch.Tensor:
        weight = torch.empty((height, width), dtype=self.dtype, device=self.device)
        return weight.normal_(std=width**-0.5, generator=self._generator)


class StaticStep:
    """One captured step: fixed buffers, one copy in, one copy out."""

    def __init__(
        self, decoder: Decoder, shape: GraphShape, max_spans: int, max_blocks: int
    ) -> None:
        self._decoder = decoder
        self._layout = InputLayout(shape, max_spans, max_blocks)
        on_gpu = decoder.device.type == "cuda"
        self._host = torch.zeros(self._layout.size, dtype=torch.int64, pin_memory=on_gpu)
        self._host_view: np.ndarray[tuple[int], np.dtype[np.int64]] = self._host.numpy()
        self._packed = self._host.to(decoder.device)
        self._partials = Partials.allocate(
            decoder.shape.traits, shape.num_tiles, shape.num_splits, decoder.device
        )
        self._chosen = torch.zeros(shape.num_rows, dtype=torch.int64, device=decoder.device)
        self._answer = torch.zeros(shape.num_rows, dtype=torch.int64, pin_memory=on_gpu)
        self.logits = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self) -> None:
        """Record the step; afterwards ``launch`` replays it."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has none here
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        self._graph = graph

    def load(self, batch: FlatBatch) -> None:
        """Put a batch into the buffers."""
        decoder = self._decoder
        pack(
            batch,
            self._layout,
            block_size=decoder.shape.block_size,
            spare_slot=decoder.spare_slot,
            out=self._host_view,
        )
        self._packed.copy_(self._host, non_blocking=True)

    def launch(self) -> None:
        """Compute the loaded batch; returns before it is done."""
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def choices(self) -> list[int]:
        """Wait for the tokens that the target chose at each row, and return them."""
        self._answer.copy_(self._chosen, non_blocking=True)
        if self._decoder.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return [int(token_id) for token_id in self._answer.tolist()]

    def _compute(self) -> None:
        part = {name: self._packed[where] for name, where in self._layout.slices().items()}
        inputs = KernelInputs(
            positions=part["positions"],
            ancestors=part["ancestors"],
            tile_span=part["tile_span"],
            tile_first=part["tile_first"],
            tile_rows=part["tile_rows"],
            span_context=part["span_context"],
            span_first_row=part["span_first_row"],
            block_tables=part["block_tables"].view(-1, self._layout.max_blocks),
        )
        self.logits = self._decoder.forward(
            part["token_ids"], part["slots"], inputs, self._partials
        )
        torch.argmax(self.logits, dim=-1, out=self._chosen)


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
