"""Whether trees are verified as their paths would be, within the near-tie rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench.gpu_batches import (
    NUM_TOKENS,
    blocks_per_span,
    chain_batch,
    path_to,
    prefill_batches,
    tree_batch,
)
from bench.gpu_decoder import LLAMA_8B, TINY, Decoder, DecoderGraphs
from verify_service.engine.device_copies import Fetched
from verify_service.engine.row_choices import drawn_tokens
from verify_service.engine.row_cuts import RowDraw
from verify_service.targets.captured_forward import CudaGraphs, GraphMaker, PlainRuns
from verify_service.targets.packed_attention import Kernel, reference_kernel, triton_kernel
from verify_service.targets.row_buckets import MAX_SPAN_ROWS, RowBuckets
from verify_service.targets.target import FlatBatch
from verify_service.targets.tree_kernel import KernelTraits
from verify_service.targets.tree_kernel_check import kernel_fault

MAX_TIE_GAP = 0.1
"""Logits this close count as tied; with random weights their standard deviation is about 1."""
MAX_DEEP_TIE_GAP = 0.25
"""Of 32 layers in half precision; logits of another text differ by several."""
CONTEXT = 11
NUM_SPANS = 3
TREE_ROWS = {"cpu": 15, "cuda": 31}
KERNEL_TRAITS = (
    LLAMA_8B.traits,
    KernelTraits(14, 2, 64, 16, 0.125),
    KernelTraits(8, 4, 256, 16, 0.0625, softcap=50.0, window=512),
    KernelTraits(4, 1, 256, 16, 0.0625, window=512),
)
"""Llama 8B, Qwen 0.5B, Gemma 2B and Gemma 270M."""
KERNEL_TYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where steps run."""

    device: torch.device
    graphs: GraphMaker
    kernel: Kernel
    num_processors: int


def host_machine() -> Machine:
    """Return the CPU with everything that stands in for a GPU's."""
    return Machine(torch.device("cpu"), PlainRuns(), reference_kernel, num_processors=8)


def cuda_machine() -> Machine | None:
    """Return the GPU, or None after a line that says what is missing."""
    if not torch.cuda.is_available():
        print("gpu          no CUDA device: nothing is measured, the Triton kernel did not run")
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    print(f"gpu          {properties.name}, {properties.multi_processor_count} processors")
    kernel = triton_kernel(device)
    if kernel is None:
        print("gpu          triton is absent: nothing is measured; install torch's CUDA build")
        return None
    return Machine(device, CudaGraphs(device), kernel, int(properties.multi_processor_count))


@dataclass(slots=True)
class Comparison:
    """Rows of trees beside the same rows in chains."""

    max_gap: float = MAX_TIE_GAP
    worst: float = 0.0
    num_rows: int = 0
    num_ties: int = 0
    num_wrong: int = 0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Compare the logits of one row."""
        self.num_rows += 1
        self.worst = max(self.worst, float((ours - theirs).abs().max()))
        left, right = int(ours.argmax()), int(theirs.argmax())
        if left != right:
            is_tie = float(theirs[right] - theirs[left]) <= self.max_gap
            self.num_ties += is_tie
            self.num_wrong += not is_tie

    def __str__(self) -> str:
        return (
            f"{self.num_rows} rows of trees against chains, largest logit difference "
            f"{self.worst:.2g}, {self.num_ties} near ties, {self.num_wrong} wrong"
        )


def check(machine: Machine, dtype: torch.dtype) -> bool:
    """Verify trees and each of their paths as chains; say whether every choice is the same."""
    block_size = TINY.block_size
    per_span = blocks_per_span(CONTEXT, block_size)
    decoder = Decoder(TINY, NUM_SPANS * per_span, dtype, machine.device)
    graphs = graphs_of(machine, decoder, NUM_SPANS, per_span)
    for chunk in prefill_batches(NUM_SPANS, CONTEXT, block_size):
        _logits(graphs, chunk)
    compared, tree_logits = compare(graphs, machine, NUM_SPANS, CONTEXT, block_size, MAX_TIE_GAP)
    kind = str(dtype).removeprefix("torch.")
    print(f"correctness  {machine.device.type} {kind}: {compared}")
    return compared.num_wrong == 0 and _choices_agree(tree_logits)


def graphs_of(machine: Machine, decoder: Decoder, num_spans: int, max_blocks: int) -> DecoderGraphs:
    """Return graphs for some spans of up to 64 rows."""
    buckets = RowBuckets(
        num_spans * MAX_SPAN_ROWS,
        num_spans,
        decoder.shape.num_kv_heads,
        num_processors=machine.num_processors,
    )
    return DecoderGraphs(decoder, buckets, max_blocks, machine.graphs, machine.kernel)


def compare(
    graphs: DecoderGraphs,
    machine: Machine,
    num_spans: int,
    context: int,
    block_size: int,
    max_gap: float,
) -> tuple[Comparison, torch.Tensor]:
    """Return trees behind stored contexts beside their paths as chains, and the trees' logits."""
    tree_rows = TREE_ROWS[machine.device.type]
    tree = tree_batch(num_spans, tree_rows, context, block_size)
    tree_logits = _logits(graphs, tree).clone()
    compared = Comparison(max_gap)
    for leaf in range(tree_rows // 2, tree_rows):
        path = path_to(leaf)
        chain_logits = _logits(graphs, chain_batch(tree, path))
        for index in range(num_spans):
            for place, row in enumerate(path):
                ours = tree_logits[index * tree_rows + row]
                compared.add(ours, chain_logits[index * len(path) + place])
    return compared, tree_logits


def check_kernel(machine: Machine) -> bool:
    """Run the kernel with the heads and windows of real models; say where it is no reference."""
    dtype = KERNEL_TYPES[machine.device.type]
    faults: list[str] = []
    for traits in KERNEL_TRAITS:
        buckets = RowBuckets(512, 256, traits.num_kv_heads, machine.num_processors)
        fault = kernel_fault(machine.kernel, [traits], buckets, dtype, machine.device)
        if fault is not None:
            faults.append(fault)
    count = len(KERNEL_TRAITS)
    print(f"kernel       {count - len(faults)} of {count} shapes of heads as the reference")
    for fault in faults:
        print(f"kernel       {fault}")
    return not faults


def _choices_agree(logits: torch.Tensor) -> bool:
    """Compare choices with noise, made where the logits are, with those made on the host."""
    draws = [
        RowDraw(row * 7919 + 1, 0.5 * (row % 3), top_k=20 * (row % 2), top_p=1.0 - 0.1 * (row % 4))
        for row in range(logits.shape[0])
    ]
    on_device, on_host = chosen_tokens(logits, draws), chosen_tokens(logits.cpu(), draws)
    num_different = sum(a != b for a, b in zip(on_device, on_host, strict=True))
    print(f"choices      {len(draws)} rows with noise, {num_different} differ from the host's")
    return num_different == 0


def _logits(graphs: DecoderGraphs, batch: FlatBatch) -> torch.Tensor:
    logits = graphs.captured.forward(batch)
    if logits is None:
        raise RuntimeError(f"no graph fits {batch.num_rows} rows")
    return logits


def chosen_tokens(logits: torch.Tensor, draws: Sequence[RowDraw]) -> list[int]:
    """Return the token chosen at each row, as the engine waits for it."""
    return [int(number) for number in Fetched(drawn_tokens(logits, draws)).numbers()]


def greedy(num_rows: int) -> Sequence[RowDraw]:
    """Return draws without noise."""
    return [RowDraw(0, 0.0)] * num_rows


def noisy(num_rows: int) -> Sequence[RowDraw]:
    """Return draws with noise."""
    return [RowDraw(row + NUM_TOKENS, 1.0) for row in range(num_rows)]
