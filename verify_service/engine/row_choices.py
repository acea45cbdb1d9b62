"""
The target's choices at all rows of a step at once, for devices that dislike being asked row by row.

Penalties, cuts, noise and log-probabilities stay where the logits are; one copy comes back. Choices
under a constraint, by the rule REJECTION or too close to call are left to ``sampler.choose``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import torch

from verify_service.engine.device_copies import Fetched, sent
from verify_service.engine.draft_selection import Selected
from verify_service.engine.noise import signed_key
from verify_service.engine.row_adjustments import adjusted
from verify_service.engine.row_cuts import (
    OPEN,
    UNUSABLE,
    Draws,
    RowDraw,
    drawn_by_rank,
    drawn_over_all,
)
from verify_service.engine.sampler import Choice, best_choices, is_drawn_alike, takes_best
from verify_service.engine.sequence import Sequence
from verify_service.engine.steps import TokenLogprobs
from verify_service.targets.target import BestTokens, FlatBatch, TargetModel

MAX_ELEMENTS = 1 << 22
"""Logits that get their noise together: 32 MB for each of a handful of intermediates."""

_Draw = Callable[[torch.Tensor, Draws], torch.Tensor]


class RowChoices(Protocol):
    """The choices at all logit rows of a step."""

    def covers(self, sequence: Sequence) -> bool:
        """Return whether they are right for a sequence."""
        ...

    def at(self, row: int) -> Choice | None:
        """Return the choice at a row that is sure; None: the row is unusable."""
        ...

    def is_sure(self, row: int) -> bool:
        """Return whether a row need not be asked by itself; the first call waits for all rows."""
        ...

    def is_here(self) -> bool:
        """Return whether asking would not wait."""
        ...


class BestChoices:
    """The largest logits of all rows."""

    def __init__(self, by_row: list[Choice | None]) -> None:
        self._by_row = by_row

    def covers(self, sequence: Sequence) -> bool:
        """Return whether a sequence takes the largest logits as they are."""
        return takes_best(sequence)

    def at(self, row: int) -> Choice | None:
        """Return the choice at a row."""
        return self._by_row[row]

    def is_sure(self, row: int) -> bool:
        """Return True: nothing rounds here."""
        del row
        return True

    def is_here(self) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class AskedLogprobs:
    """Log-probabilities of rows that ask for any."""

    rows: dict[int, tuple[int, int]]
    """By row: its place among those that ask, and how many of the best tokens it asks for too."""
    num_top: int
    """Of the row that asks for most."""


class DrawnChoices:
    """Choices of all rows that a device makes, from here on, with all but constraints."""

    def __init__(self, logits: torch.Tensor, selected: SequenceOf[Selected]) -> None:
        """
        Start choosing; the host goes on at once.

        ``logits`` hold the rows of ``selected``, in order  # [num_logit_rows, num_token_ids].
        """
        self._asked = _asked_logprobs(selected, logits.shape[1])
        chosen = drawn_tokens(adjusted(logits, selected), draws_of(selected))
        self._num_rows = logits.shape[0]
        parts = [chosen.to(torch.float64)]
        if self._asked.rows:
            parts.append(_logprobs(logits, chosen, self._asked).flatten())
        self._fetched = Fetched(torch.cat(parts))
        self._numbers: list[float] | None = None

    def covers(self, sequence: Sequence) -> bool:
        """Return whether a sequence's choices can be made together with others'."""
        return is_drawn_alike(sequence)

    def at(self, row: int) -> Choice | None:
        """Return the choice at a row that is sure; None: the row is unusable."""
        token_id = int(self._read()[row])
        if token_id == UNUSABLE:
            return None
        return Choice(token_id, self._logprobs_at(row))

    def is_sure(self, row: int) -> bool:
        """Return whether a row need not be asked by itself; the first call waits for all rows."""
        return int(self._read()[row]) != OPEN

    def is_here(self) -> bool:
        """Return whether the device is done."""
        return self._fetched.is_here()

    def _read(self) -> list[float]:
        if self._numbers is None:
            self._numbers = self._fetched.numbers()
        return self._numbers

    def _logprobs_at(self, row: int) -> TokenLogprobs | None:
        if row not in self._asked.rows:
            return None
        place, count = self._asked.rows[row]
        most = self._asked.num_top
        start = self._num_rows + place * (1 + 2 * most)
        own, *rest = self._read()[start : start + 1 + 2 * most]
        pairs = zip(map(int, rest[most : most + count]), rest[:count], strict=True)
        return TokenLogprobs(own, tuple(pairs))


def choose_all(logits: torch.Tensor, selected: SequenceOf[Selected]) -> RowChoices | None:
    """
    Start choosing at all rows of ``selected``; None where asking row by row costs less.

    ``logits`` hold the rows of those that emit, in order  # [num_logit_rows, num_token_ids].
    """
    if logits.is_cuda:
        return DrawnChoices(logits, selected) if selected else None
    best = best_choices(logits)
    return None if best is None else BestChoices(best)


def choose_best(
    target: TargetModel, batch: FlatBatch, selected: SequenceOf[Selected]
) -> RowChoices | None:
    """
    Run a pass for the largest logits of ``selected``, those of ``batch`` that emit, alone.

    None, with nothing done, where not all of them ask for those, or the target has no such pass.
    """
    if not (isinstance(target, BestTokens) and selected):
        return None
    if not all(takes_best(each.turn.sequence) for each in selected):
        return None
    best = target.best_tokens(batch)
    if best is None:
        return None
    return BestChoices([None if token_id is None else Choice(token_id) for token_id in best])


def draws_of(selected: SequenceOf[Selected]) -> list[RowDraw]:
    """Return how each row is chosen: a sequence's last committed one, then its nodes'."""
    return [draw for each in selected for draw in _draws(each)]


def _draws(selected: Selected) -> Iterator[RowDraw]:
    sequence = selected.turn.sequence
    params = sequence.request.sampling
    first = len(sequence.token_ids)
    for depth in (0, *selected.tree.depths()):
        if params.is_greedy or not is_drawn_alike(sequence):
            yield RowDraw(0, 0.0)
        else:
            key = signed_key(params.seed, first + depth)
            yield RowDraw(key, params.temperature, params.top_k, params.top_p, params.min_p)


def drawn_tokens(scores: torch.Tensor, draws: SequenceOf[RowDraw]) -> torch.Tensor:
    """Return the token that ``sampler.pick`` would, UNUSABLE or OPEN, by row  # [num_rows]."""
    best = scores.argmax(dim=1)
    is_usable = torch.isfinite(scores.gather(1, best[:, None])).flatten()
    noisy = [row for row, draw in enumerate(draws) if draw.temperature > 0.0]
    plain = [row for row in noisy if not draws[row].needs_order]
    ranked = [row for row in noisy if draws[row].needs_order]
    _draw_into(best, scores, draws, plain, drawn_over_all)
    _draw_into(best, scores, draws, ranked, drawn_by_rank)
    return torch.where(is_usable, best, UNUSABLE)


def _draw_into(
    chosen: torch.Tensor,
    scores: torch.Tensor,
    draws: SequenceOf[RowDraw],
    rows: list[int],
    draw: _Draw,
) -> None:
    """Draw at some rows, as many together as memory allows."""
    num_ids = scores.shape[1]
    per_pass = max(MAX_ELEMENTS // num_ids, 1)
    for start in range(0, len(rows), per_pass):
        part = rows[start : start + per_pass]
        where = sent(torch.tensor(part), scores.device)
        own = Draws([draws[row] for row in part], num_ids, scores.device)
        chosen[where] = draw(scores[where], own)


def _asked_logprobs(selected: SequenceOf[Selected], num_ids: int) -> AskedLogprobs:
    rows: dict[int, tuple[int, int]] = {}
    first = 0
    for each in selected:
        asked, num_rows = each.turn.sequence.request.num_logprobs, 1 + each.tree.num_nodes
        if asked is not None and is_drawn_alike(each.turn.sequence):
            for row in range(first, first + num_rows):
                rows[row] = (len(rows), min(asked, num_ids))
        first += num_rows
    return AskedLogprobs(rows, max((count for _, count in rows.values()), default=0))


def _logprobs(logits: torch.Tensor, chosen: torch.Tensor, asked: AskedLogprobs) -> torch.Tensor:
    """Return the chosen token's log-probability, the best ones' and their ids, by row."""
    parts: list[torch.Tensor] = []
    rows = list(asked.rows)
    per_pass = max(MAX_ELEMENTS // logits.shape[1], 1)
    for start in range(0, len(rows), per_pass):
        where = sent(torch.tensor(rows[start : start + per_pass]), logits.device)
        values = torch.log_softmax(logits[where].to(torch.float64), dim=1)
        own = values.gather(1, chosen[where].clamp(min=0)[:, None])
        top = torch.topk(values, asked.num_top, dim=1)
        parts.append(torch.cat((own, top.values, top.indices.to(torch.float64)), dim=1))
    return torch.cat(parts)
