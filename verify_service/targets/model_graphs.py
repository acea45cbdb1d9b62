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
from verify_service.targets.tree_kernel_check import kernel_fault
from verify_service.targets.tree_kernel_inputs import ALIGNMENT

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
        log.warning("tree_kernel_absent", cause="it is not built for heads of this size or number")
        return None
    properties = torch.cuda.get_device_properties(device)
    return Accelerator(CudaGraphs(device), kernel, int(properties.multi_processor_count))


class ModelStep:
    """A model's forward pass over static inputs: what a graph records."""

    def __init__(
        self,
        model: PreTrainedModel,
        attention: TreeAttention,
        workspace: Workspace,
        kernel: Kernel,
        logits: torch.Tensor,  # float32 [max_rows, vocab_size]
    ) -> None:
        self._model = model
        self._attention = attention
        self._workspace = workspace
        self._kernel = kernel
        self._logits = logits

    def __call__(self, inputs: StepInputs, shape: GraphShape) -> torch.Tensor:
        """Store the rows' KV; leave the logits of the wanted rows where all graphs leave them."""
        block_size = self._attention.cache.block_size
        self._attention.serve(PackedStep(inputs, shape, block_size, self._workspace, self._kernel))
        logits: torch.Tensor = self._model(
            input_ids=inputs.token_ids[None],
            position_ids=inputs.kernel.positions[None],
            use_cache=False,
            logits_to_keep=inputs.logit_rows,
        ).logits
        # One buffer for all graphs: each of its own would be gigabytes.
        return self._logits[: shape.num_rows].copy_(logits[0])


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
        cache, device = attention.cache, attention.device
        self._device = device
        self._buckets = buckets_for(layers, accelerator)
        traits = kernel_traits(layers, cache.block_size)
        workspace = Workspace(traits, tuple(self._buckets.shapes()), device)
        logits = torch.zeros(
            (accelerator.max_rows, info.vocab_size), dtype=torch.float32, device=device
        )
        self._compute = ModelStep(model, attention, workspace, accelerator.kernel, logits)
        longest = -(-(info.context_length + SPARE_TOKENS) // cache.block_size)
        max_blocks = min(cache.num_blocks, longest)
        # A multiple, as the addresses of the parts are: one pattern, one compilation.
        max_blocks = -(-max_blocks // ALIGNMENT) * ALIGNMENT
        self._room = KvRoom(cache.block_size, cache.spare_slot, max_blocks)
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
        return CapturedForward(self._compute, self._buckets, self._room, graphs, self._device)


def buckets_for(layers: Sequence[LayerTraits], accelerator: Accelerator) -> RowBuckets:
    """Return the sizes to capture for a model."""
    heads = max(each.shape.num_kv_heads for each in layers)
    return RowBuckets(accelerator.max_rows, MAX_SPANS, heads, accelerator.num_processors)


@torch.inference_mode()
def graphs_for(
    model: PreTrainedModel,
    info: TargetInfo,
    attention: TreeAttention,
    layers: Sequence[LayerTraits],
    accelerator: Accelerator,
) -> ModelGraphs | None:
    """
    Return a model's graphs; None where the kernel fails on this device or computes something else.

    Steps then run without graphs, by torch's own operations.
    """
    traits = kernel_traits(layers, attention.cache.block_size)
    buckets = buckets_for(layers, accelerator)
    fault = kernel_fault(accelerator.kernel, traits, buckets, attention.dtype, attention.device)
    if fault is not None:
        log.warning("tree_kernel_absent", cause=fault)
        return None
    return ModelGraphs(model, info, attention, layers, accelerator)
