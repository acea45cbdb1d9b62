"""A transformers model's forward passes as graphs over the paged KV: the path on accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import torch
from transformers import PreTrainedModel

from verify_service.targets.attention_step import LayerTraits
from verify_service.targets.captured_forward import (
    CapturedForward,
    CudaGraphs,
    GraphMaker,
    KvRoom,
    PlainRuns,
)
from verify_service.targets.packed_attention import (
    Kernel,
    PackedStep,
    Workspace,
    kernel_traits,
    triton_kernel,
)
from verify_service.targets.row_buckets import GraphShape, RowBuckets
from verify_service.targets.static_inputs import StepInputs
from verify_service.targets.target import FlatBatch, TargetInfo
from verify_service.targets.tree_attention import TreeAttention

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_GRAPH_ROWS = 512
"""Larger steps are bound by arithmetic and run without a graph; logits are kept for this many."""
MAX_SPANS = 256
SPARE_TOKENS = 512
"""Drafted rows lie past the last position that a sequence may reach."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How steps run on a device."""

    graphs: GraphMaker
    kernel: Kernel
    num_processors: int
    max_rows: int = MAX_GRAPH_ROWS
    is_lazy: bool = False
    """Capture on first use instead of before the first step."""


def accelerator_of(device: torch.device, layers: Sequence[LayerTraits]) -> Accelerator | None:
    """Return how steps run on a CUDA device; None: without graphs, by torch's own operations."""
    if device.type != "cuda":
        return None
    kernel = triton_kernel(device)
    if kernel is None:
        log.warning("tree_kernel_absent", cause="triton is not installed")
        return None
    if not all(traits.is_served for traits in kernel_traits(layers, 1)):
        log.warning("tree_kernel_absent", cause="the head dimension is not one it is built for")
        return None
    properties = torch.cuda.get_device_properties(device)
    return Accelerator(CudaGraphs(device), kernel, int(properties.multi_processor_count))


class ModelGraphs:
    """The graphs of one model and the buffers that they share."""

    def __init__(
        self,
        model: PreTrainedModel,
        info: TargetInfo,
        attention: TreeAttention,
        layers: Sequence[LayerTraits],
        accelerator: Accelerator,
    ) -> None:
        self._model = model
        self._attention = attention
        self._kernel = accelerator.kernel
        cache, device = attention.cache, attention.device
        heads = max(each.shape.num_kv_heads for each in layers)
        self._buckets = RowBuckets(
            accelerator.max_rows, MAX_SPANS, heads, accelerator.num_processors
        )
        traits = kernel_traits(layers, cache.block_size)
        self._workspace = Workspace(traits, tuple(self._buckets.shapes()), device)
        self._logits = torch.zeros(
            (accelerator.max_rows, info.vocab_size), dtype=torch.float32, device=device
        )
        longest = -(-(info.context_length + SPARE_TOKENS) // cache.block_size)
        self._room = KvRoom(cache.block_size, cache.spare_slot, min(cache.num_blocks, longest))
        self._captured = self._with(accelerator.graphs)
        if not accelerator.is_lazy:
            self._capture_all()

    @property
    def num_graphs(self) -> int:
        """How many sizes are captured."""
        return self._captured.num_graphs

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """Return float32 logits of the wanted rows, valid until the next call; None: no graph."""
        return self._captured.forward(batch)

    @torch.inference_mode()
    def _capture_all(self) -> None:
        try:
            self._captured.capture_all()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # something in the model waits for the device
            log.warning("graph_capture_failed", detail=str(error).partition("\n")[0])
            self._captured = self._with(PlainRuns())

    def _with(self, graphs: GraphMaker) -> CapturedForward:
        return CapturedForward(
            self._compute, self._buckets, self._room, graphs, self._attention.device
        )

    def _compute(self, inputs: StepInputs, shape: GraphShape) -> torch.Tensor:
        block_size = self._room.block_size
        self._attention.serve(PackedStep(inputs, shape, block_size, self._workspace, self._kernel))
        logits: torch.Tensor = self._model(
            input_ids=inputs.token_ids[None],
            position_ids=inputs.kernel.positions[None],
            use_cache=False,
            logits_to_keep=inputs.logit_rows,
        ).logits
        # One buffer for all graphs: each of its own would be gigabytes.
        return self._logits[: shape.num_rows].copy_(logits[0])
