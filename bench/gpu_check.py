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
from bench.gpu_decoder import TINY, Decoder, DecoderGraphs
from verify_service.engine.device_copies import Fetched
from verify_service.engine.row_choices import drawn_tokens
from verify_service.engine.row_cuts import RowDraw
from verify_service.targets.captured_forward import GraphMaker
from verify_service.targets.packed_attention import Kernel
from verify_service.targets.row_buckets import RowBuckets
from verify_service.targets.target import FlatBatch

MAX_TIE_GAP = 0.1
"""Logits this close count as tied; with random weights their standard deviation is about 1."""
CONTEXT = 11
NUM_SPANS = 3
TREE_ROWS = {"cpu": 15, "cuda": 31}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where steps run."""

    device: torch.device
    graphs: GraphMaker
    kernel: Kernel
    num_processors: int


@dataclass(slots=True)
class Comparison:
    """Rows of trees beside the same rows in chains."""

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
            is_tie = float(theirs[right] - theirs[left]) <= MAX_TIE_GAP
            self.num_ties += is_tie
            self.num_wrong += not is_tie


def check(machine: Machine, dtype: torch.dtype) -> bool:
    """Verify trees and each of their paths as chains; say whether every choice is the same."""
    block_size, tree_rows = TINY.block_size, TREE_ROWS[machine.device.type]
    per_span = blocks_per_span(CONTEXT, block_size)
    decoder = Decoder(TINY, NUM_SPANS * per_span, dtype, machine.device)
    buckets = RowBuckets(
        NUM_SPANS * 64, NUM_SPANS, TINY.num_kv_heads, num_processors=machine.num_processors
    )
    graphs = DecoderGraphs(decoder, buckets, per_span, machine.graphs, machine.kernel)
    for chunk in prefill_batches(NUM_SPANS, CONTEXT, block_size):
        _logits(graphs, chunk)
    tree = tree_batch(NUM_SPANS, tree_rows, CONTEXT, block_size)
    tree_logits = _logits(graphs, tree).clone()
    compared = Comparison()
    for leaf in range(tree_rows // 2, tree_rows):
        path = path_to(leaf)
        chain_logits = _logits(graphs, chain_batch(tree, path))
        for index in range(NUM_SPANS):
            for place, row in enumerate(path):
                ours = tree_logits[index * tree_rows + row]
                compared.add(ours, chain_logits[index * len(path) + place])
    kind = str(dtype).removeprefix("torch.")
    print(
        f"correctness  {machine.device.type} {kind}: {compared.num_rows} rows of trees against "
        f"chains, largest logit difference {compared.worst:.2g}, {compared.num_ties} near ties, "
        f"{compared.num_wrong} wrong"
    )
    return compared.num_wrong == 0 and _choices_agree(tree_logits)


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
        raise SystemExit(f"no graph fits {batch.num_rows} rows")
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
