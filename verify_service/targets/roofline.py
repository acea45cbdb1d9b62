"""
What a step of a known model on a known GPU costs, from first principles (roofline; Williams et al.
2009). Data and arithmetic only.

A term is the larger of its memory and its arithmetic time; the terms of a step add up:
    weights      all weights once, or rows times FLOPs per token
    attention    the KV of every sequence once, or its scores for all rows
    all-reduce   two per layer under tensor parallelism
    step         launches, sampling and the server's own work between two steps
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BYTES_PER_VALUE: Final = 2
"""FP16 or BF16 weights, KV and activations."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its data sheet has it, and the shares of it that kernels reach."""

    name: str
    memory_bytes_per_second: float
    flops: float
    """Dense FP16 or BF16."""
    memory_bytes: float
    link_bytes_per_second: float
    """To the other GPUs, one direction."""
    memory_efficiency: float = 0.80
    """Share of the bandwidth that decode kernels reach; 0.75 to 0.90 is usual for weights of this
    size."""
    flops_efficiency: float = 0.65
    """Share of the peak that cuBLAS reaches at hundreds of rows; 0.6 to 0.75 is usual."""
    all_reduce_seconds: float = 9e-6
    """Latency of a small all-reduce over NVLink, one-shot kernel."""


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder by the numbers of its config.json."""

    name: str
    num_parameters: float
    num_embedding_parameters: float
    """The input embedding: gathered, never read as a whole."""
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    context_length: int
    tensor_parallel: int
    """The usual number of GPUs in FP16."""

    @property
    def weight_bytes(self) -> float:
        """Bytes that one step reads."""
        return (self.num_parameters - self.num_embedding_parameters) * BYTES_PER_VALUE

    @property
    def flops_per_row(self) -> float:
        """Multiplications and additions of one row outside attention."""
        return 2 * (self.num_parameters - self.num_embedding_parameters)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values of one token, all layers."""
        return 2 * self.num_layers * self.num_key_value_heads * self.head_dim * BYTES_PER_VALUE

    @property
    def attention_flops_per_pair(self) -> float:
        """Operations of one row on one context token, all layers: scores and weighted sum."""
        return 4 * self.num_layers * self.num_attention_heads * self.head_dim


# NVIDIA H100 SXM5 and H200 SXM data sheets: 989 TFLOPS dense FP16, HBM3 3.35 TB/s and HBM3e
# 4.8 TB/s, NVLink 900 GB/s both ways together.
GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        Gpu("h100", 3.35e12, 989e12, 80e9, 450e9),
        Gpu("h200", 4.8e12, 989e12, 141e9, 450e9),
    )
}

# config.json of meta-llama/Llama-3.3-70B-Instruct and meta-llama/Llama-3.1-8B-Instruct;
# vocabulary 128 256, untied embeddings.
MODELS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        Model("llama-3.3-70b", 70.55e9, 128_256 * 8192, 80, 8192, 64, 8, 128, 131_072, 4),
        Model("llama-3.1-8b", 8.03e9, 128_256 * 4096, 32, 4096, 32, 8, 128, 131_072, 1),
    )
}

TILE_ROWS: Final = 8
"""Matrix units work on multiples of this many rows."""

STEP_SECONDS: Final = 1.5e-3
"""Between two steps of a tuned server with captured graphs."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do, in counts."""

    num_rows: int
    num_context_tokens: int
    """Stored tokens of all its sequences."""
    num_pairs: int
    """Sum over the rows of the tokens that each attends to."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The step times of one model on one kind of GPU."""

    model: Model
    gpu: Gpu
    tensor_parallel: int
    step_seconds: float = STEP_SECONDS

    def seconds(self, work: Work) -> float:
        """Return the duration of a step."""
        rows = -(-work.num_rows // TILE_ROWS) * TILE_ROWS
        weights = max(
            self._memory_seconds(self.model.weight_bytes),
            self._flops_seconds(rows * self.model.flops_per_row),
        )
        attention = max(
            self._memory_seconds(work.num_context_tokens * self.model.kv_bytes_per_token),
            self._flops_seconds(work.num_pairs * self.model.attention_flops_per_pair),
        )
        return self.step_seconds + weights + attention + self._all_reduce_seconds(work.num_rows)

    @property
    def max_kv_tokens(self) -> int:
        """Tokens whose KV fits beside the weights, a tenth of the memory kept free."""
        memory = 0.9 * self.gpu.memory_bytes * self.tensor_parallel
        weights = self.model.num_parameters * BYTES_PER_VALUE
        return max(0, int((memory - weights) / self.model.kv_bytes_per_token))

    def _memory_seconds(self, num_bytes: float) -> float:
        bandwidth = self.gpu.memory_bytes_per_second * self.gpu.memory_efficiency
        return num_bytes / (self.tensor_parallel * bandwidth)

    def _flops_seconds(self, num_flops: float) -> float:
        return num_flops / (self.tensor_parallel * self.gpu.flops * self.gpu.flops_efficiency)

    def _all_reduce_seconds(self, num_rows: int) -> float:
        if self.tensor_parallel == 1:
            return 0.0
        message = num_rows * self.model.hidden_size * BYTES_PER_VALUE
        share = 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        transfer = message * share / self.gpu.link_bytes_per_second
        return 2 * self.model.num_layers * (self.gpu.all_reduce_seconds + transfer)
