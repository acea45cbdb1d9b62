"""
The target's choices at all rows of a step at once, for devices that dislike being asked row by row.

Noise, sum and maximum stay where the logits are; what comes back is one integer per row. Choices
that depend on the path or are cut (top-k, top-p, min-p) are left to ``sampler.choose``.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from verify_service.engine.draft_selection import Selected
from verify_service.engine.noise import noise_of, signed_key
from verify_service.engine.sampler import Choice, best_choices, takes_best
from verify_service.engine.sampling import Rule
from verify_service.engine.sequence import Sequence

MAX_ELEMENTS = 1 << 22
"""Logits that get their noise together: 32 MB for each of a handful of intermediates."""
_UNUSABLE = -1


@dataclass(frozen=True, slots=True)
class RowChoices:
    """Choices of all logit rows, right for the sequences that ``covers`` names."""

    by_row: list[Choice | None]
    covers: Callable[[Sequence], bool]


@dataclass(frozen=True, slots=True)
class RowDraw:
    """How one row is chosen."""

    key: int
    """Of its noise stream, signed."""
    temperature: float
    """0: the best token, without noise."""


def choose_all(logits: torch.Tensor, selected: SequenceOf[Selected]) -> RowChoices | None:
    """
    Return the choices at all rows of ``selected``, or None where asking row by row costs less.

    ``logits`` hold the rows of those that emit, in order  # [num_logit_rows, num_token_ids].
    """
    if not logits.is_cuda:
        best = best_choices(logits)
        return None if best is None else RowChoices(best, takes_best)
    return RowChoices(drawn_choices(logits, draws_of(selected)), is_drawn_alike)


def is_drawn_alike(sequence: Sequence) -> bool:
    """Return whether a choice depends on logits, seed and position alone, over all tokens."""
    request = sequence.request
    params, limits = request.sampling, request.limits
    if params.is_greedy:
        return takes_best(sequence)
    is_cut = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    keeps_open = limits.min_tokens > 0 and bool(limits.stop_token_ids)
    is_adjusted = params.has_penalties or bool(params.logit_bias) or keeps_open
    is_watched = request.constraint is not None or request.num_logprobs is not None
    matches = params.rule is Rule.SAMPLE_AND_MATCH
    return matches and not (is_cut or is_adjusted or is_watched)


def draws_of(selected: SequenceOf[Selected]) -> list[RowDraw]:
    """Return how each row is chosen: a sequence's last committed one, then its nodes'."""
    draws: list[RowDraw] = []
    for each in selected:
        sequence = each.turn.sequence
        params = sequence.request.sampling
        first = len(sequence.token_ids)
        if params.is_greedy or not is_drawn_alike(sequence):
            draws += [RowDraw(0, 0.0)] * (1 + each.tree.num_nodes)
            continue
        for depth in (0, *each.tree.depths()):
            draws.append(RowDraw(signed_key(params.seed, first + depth), params.temperature))
    return draws


def drawn_choices(logits: torch.Tensor, draws: SequenceOf[RowDraw]) -> list[Choice | None]:
    """Return what ``sampler.pick`` would, all rows at once; None: the row holds NaN or infinity."""
    if not draws:
        return []
    best = logits.argmax(dim=1)
    is_usable = torch.isfinite(logits.gather(1, best[:, None])).flatten()
    noisy = [row for row, draw in enumerate(draws) if draw.temperature > 0.0]
    per_pass = max(MAX_ELEMENTS // logits.shape[1], 1)
    for start in range(0, len(noisy), per_pass):
        rows = noisy[start : start + per_pass]
        where = _sent(torch.tensor(rows), logits.device)
        best[where] = _noisy_best(logits[where], [draws[row] for row in rows])
    chosen = torch.where(is_usable, best, _UNUSABLE).tolist()
    return [None if token_id == _UNUSABLE else Choice(token_id) for token_id in chosen]


def _noisy_best(logits: torch.Tensor, draws: SequenceOf[RowDraw]) -> torch.Tensor:
    """Return ``argmax(logits / T + noise)`` of each row; the first on a tie  # [num_rows]."""
    device = logits.device
    keys = _sent(torch.tensor([draw.key for draw in draws]), device)[:, None]
    temperatures = torch.tensor([draw.temperature for draw in draws], dtype=torch.float64)
    token_ids = torch.arange(logits.shape[1], device=device)
    scaled = logits.to(torch.float64) / _sent(temperatures, device)[:, None]
    return (scaled + noise_of(keys, token_ids)).argmax(dim=1)


def _sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values on a device without waiting for what it does meanwhile."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
