"""What choosing costs for ``bench.gpu_step``: all rows of a step at once, or a walk at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from bench.gpu_batches import NUM_TOKENS
from paceline.tree import TokenTree
from verify_service.engine.draft_selection import Selected
from verify_service.engine.row_choices import DrawnChoices
from verify_service.engine.sampler import choose
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Drafting, Request, Sequence

Wall = Callable[[Callable[[], object]], float]
"""From what is run to the median seconds that it takes, the device's included."""

SAMPLED = SamplingParams(temperature=0.8, seed=3)
KINDS: dict[str, tuple[SamplingParams, int | None]] = {
    "noise": (SAMPLED, None),
    "top-p": (replace(SAMPLED, top_p=0.95), None),
    "all cuts": (replace(SAMPLED, top_k=50, top_p=0.95, min_p=0.02), None),
    "penalties": (
        replace(SAMPLED, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1),
        None,
    ),
    "logprobs": (SAMPLED, 5),
}
USUAL_WALK = 3
"""Rows of one sequence that a walk asks for, in the mean."""


def print_choices(
    wall: Wall, device: torch.device, vocab: int, batches: tuple[int, ...], num_rows: int
) -> None:
    """Print the cost of choices per step, by options and batch."""
    for num_spans in batches:
        generator = torch.Generator(device).manual_seed(num_spans)
        shape = (num_spans * num_rows, vocab)
        logits = torch.randn(shape, generator=generator, device=device) * 3
        for name, (params, num_logprobs) in KINDS.items():
            selected = [
                _selected(index, params, num_logprobs, num_rows) for index in range(num_spans)
            ]
            at_once = wall(partial(_all_at_once, logits, selected))
            one_by_one = wall(partial(_one_by_one, logits, selected))
            num_alone = _num_alone(logits, selected)
            print(
                f"sampling     batch {num_spans:3}, {num_rows} rows/seq, {name:9}  "
                f"at once {at_once * 1e3:8.3f} ms, walk by walk {one_by_one * 1e3:8.3f} ms, "
                f"{num_alone} rows left to be asked alone"
            )


def _selected(
    index: int, params: SamplingParams, num_logprobs: int | None, num_rows: int
) -> Selected:
    prompt = tuple((7 * place + index) % NUM_TOKENS for place in range(256))
    request = Request(
        index,
        prompt,
        prompt[:64],
        sampling=replace(params, seed=params.seed + index),
        limits=TokenLimits(max_tokens=1024),
        num_logprobs=num_logprobs,
    )
    sequence = Sequence(request, Drafting(), 0.0, num_rows)
    tree = TokenTree.chain([(3 * node + index) % NUM_TOKENS for node in range(num_rows - 1)])
    return Selected(Turn(sequence, 1, is_decode=True), tree)


def _all_at_once(logits: torch.Tensor, selected: list[Selected]) -> None:
    DrawnChoices(logits, selected).is_sure(0)


def _one_by_one(logits: torch.Tensor, selected: list[Selected]) -> None:
    first = 0
    for each in selected:
        for node in range(min(USUAL_WALK, 1 + each.tree.num_nodes)):
            choose(logits[first + node], each.turn.sequence, each.tree.path(node))
        first += 1 + each.tree.num_nodes


def _num_alone(logits: torch.Tensor, selected: list[Selected]) -> int:
    chosen = DrawnChoices(logits, selected)
    return sum(not chosen.is_sure(row) for row in range(logits.shape[0]))
