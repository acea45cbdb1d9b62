"""
Tokens drawn with noise at many rows at once, over all tokens or over those that the cuts leave.

Sums over a row may round otherwise here than in ``sampler.pick``, which asks one row. Where
rounding could decide, or more than the best tokens would have to be looked at, a row stays OPEN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from verify_service.engine.device_copies import sent
from verify_service.engine.noise import noise_of
from verify_service.engine.sampler import NUCLEUS_HEAD, ROUNDING

OPEN = -2
"""In place of a token: ask this row by itself."""
UNUSABLE = -1
"""In place of a token: the row holds NaN, infinity or nothing that may be chosen."""


@dataclass(frozen=True, slots=True)
class RowDraw:
    """How one row is chosen."""

    key: int
    """Of its noise stream, signed."""
    temperature: float
    """0: the best token, without noise or cuts."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def needs_order(self) -> bool:
        """Whether its cuts go by rank."""
        return self.top_k > 0 or self.top_p < 1.0


class Draws:
    """The draws of some rows, with temperature, on a device; columns."""

    def __init__(self, draws: SequenceOf[RowDraw], num_ids: int, device: torch.device) -> None:
        integers = [(draw.key, _num_ranks(draw, num_ids)) for draw in draws]
        numbers = [(draw.temperature, draw.top_p, _log(draw.min_p)) for draw in draws]
        keys_and_ranks = sent(torch.tensor(integers), device)
        parameters = sent(torch.tensor(numbers, dtype=torch.float64), device)
        self.keys, self.num_ranks = keys_and_ranks[:, :1], keys_and_ranks[:, 1:]
        self.temperatures = parameters[:, :1]
        self.top_p = parameters[:, 1:2]
        self.log_min_p = parameters[:, 2:]
        self.has_floor = any(draw.min_p > 0.0 for draw in draws)


def drawn_over_all(scores: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Return ``argmax(scores / T + noise)`` of rows without ranks, or OPEN  # [num_rows]."""
    scaled = scores.to(torch.float64) / draws.temperatures
    token_ids = torch.arange(scores.shape[1], device=scores.device)
    totals = scaled + noise_of(draws.keys, token_ids)
    if draws.has_floor:
        floor = scaled.amax(dim=1, keepdim=True) + draws.log_min_p
        totals.masked_fill_(scaled < floor, -math.inf)
    best, token_id = totals.max(dim=1, keepdim=True)
    return torch.where(_has_rival(totals, best), OPEN, token_id).flatten()


def drawn_by_rank(scores: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Return what rows with top-k or top-p, min-p too, draw, or OPEN  # [num_rows]."""
    scaled = scores.to(torch.float64) / draws.temperatures
    values, token_ids = _best_tokens(scaled)
    num_ids, num_best = scaled.shape[1], values.shape[1]
    kept = torch.arange(num_best, device=scores.device) < draws.num_ranks
    is_cut = draws.num_ranks < num_ids
    log_total = torch.where(is_cut, _log_total(values, kept), scaled.logsumexp(1, keepdim=True))
    probabilities = torch.exp(values - log_total).masked_fill_(~kept, 0.0)
    before = probabilities.cumsum(1) - probabilities
    has_nucleus = draws.top_p < 1.0
    is_close = has_nucleus & kept & ((before - draws.top_p).abs() < ROUNDING)
    kept &= ~has_nucleus | (before < draws.top_p)
    kept &= values >= values[:, :1] + draws.log_min_p
    totals = (values + noise_of(draws.keys, token_ids)).masked_fill_(~kept, -math.inf)
    best, place = totals.max(dim=1, keepdim=True)
    is_open = is_close.any(1, keepdim=True) | _has_rival(totals, best)
    if num_best < num_ids:
        # What is kept must end above the last of the best: the next token may be its equal.
        reaches_end = (kept & (values == values[:, -1:])).any(1, keepdim=True)
        is_open |= reaches_end | (is_cut & (draws.num_ranks > num_best))
    return torch.where(is_open, OPEN, token_ids.gather(1, place)).flatten()


def _best_tokens(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest values and their ids, of equal ones the first, down each row."""
    count = min(NUCLEUS_HEAD, scaled.shape[1])
    token_ids = torch.topk(scaled, count, dim=1, sorted=False).indices.sort(dim=1).values
    values, order = scaled.gather(1, token_ids).sort(dim=1, descending=True, stable=True)
    return values, token_ids.gather(1, order)


def _log_total(values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(~kept, -math.inf).logsumexp(1, keepdim=True)


def _has_rival(totals: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """Return whether rounding could make another token the best  # [num_rows, 1]."""
    return (totals > best - ROUNDING).sum(1, keepdim=True) > 1


def _num_ranks(draw: RowDraw, num_ids: int) -> int:
    return min(draw.top_k, num_ids) if draw.top_k > 0 else num_ids


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0.0 else -math.inf
