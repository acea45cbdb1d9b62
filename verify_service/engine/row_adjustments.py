"""
What comes before temperature, for all rows of a step at once: penalties, bias and minimum length.
The same arithmetic as ``sampler.choose``, element by element.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import torch

from verify_service.engine.device_copies import sent
from verify_service.engine.draft_selection import Selected
from verify_service.engine.sampler import is_drawn_alike
from verify_service.engine.sequence import Sequence


def adjusted(logits: torch.Tensor, selected: SequenceOf[Selected]) -> torch.Tensor:
    """
    Return the logits after all that comes before temperature; a copy if anything applies.

    Rows are those of ``selected``, in order: a sequence's last committed one, then its nodes'.
    """
    scores: torch.Tensor | None = None
    first = 0
    for each in selected:
        num_rows = 1 + each.tree.num_nodes
        if _is_adjusted(each.turn.sequence):
            scores = logits.clone() if scores is None else scores
            _adjust(scores[first : first + num_rows], each)
        first += num_rows
    return logits if scores is None else scores


def _is_adjusted(sequence: Sequence) -> bool:
    params = sequence.request.sampling
    changes = params.has_penalties or bool(params.logit_bias) or _num_kept_open(sequence) > 0
    return changes and is_drawn_alike(sequence)


def _num_kept_open(sequence: Sequence) -> int:
    """Return how many more tokens have to come before a stop token may."""
    limits = sequence.request.limits
    return limits.min_tokens - sequence.num_emitted if limits.stop_token_ids else 0


def _adjust(scores: torch.Tensor, selected: Selected) -> None:
    sequence, tree = selected.turn.sequence, selected.tree
    params = sequence.request.sampling
    if params.has_penalties:
        _penalize(scores, selected)
    if params.logit_bias:
        biases = torch.tensor(list(params.logit_bias.values()), dtype=scores.dtype)
        scores[:, _ids(params.logit_bias, scores)] += sent(biases, scores.device)
    num_kept_open = _num_kept_open(sequence)
    if num_kept_open > 0:
        depths = (0, *tree.depths())
        rows = [row for row, depth in enumerate(depths) if depth < num_kept_open]
        stops = _ids(sequence.request.limits.stop_token_ids, scores)
        scores[_ids(rows, scores)[:, None], stops] = -math.inf


def _penalize(scores: torch.Tensor, selected: Selected) -> None:
    """Every row counts the committed tokens and those of its own path."""
    sequence, tree = selected.turn.sequence, selected.tree
    params = sequence.request.sampling
    pairs = [(row, token_id) for row in range(1 + tree.num_nodes) for token_id in tree.path(row)]
    rows = _ids([row for row, _ in pairs], scores)
    token_ids = _ids([token_id for _, token_id in pairs], scores)
    if params.repetition_penalty != 1.0:
        seen = torch.zeros_like(scores, dtype=torch.bool)
        seen.index_fill_(1, _ids(set(sequence.token_ids), scores), 1)
        seen[rows, token_ids] = True
        penalty = params.repetition_penalty
        lowered = torch.where(scores > 0, scores / penalty, scores * penalty)
        scores.copy_(torch.where(seen, lowered, scores))
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        emitted = Counter(sequence.token_ids[sequence.prompt_len :])
        counts = torch.zeros_like(scores)
        amounts = torch.tensor(list(emitted.values()), dtype=scores.dtype)
        counts[:, _ids(emitted, scores)] = sent(amounts, scores.device)
        counts.index_put_((rows, token_ids), counts.new_ones(()), accumulate=True)
        weights = params.presence_penalty + params.frequency_penalty * counts
        scores.copy_(torch.where(counts > 0, scores - weights, scores))


def _ids(values: Iterable[int], scores: torch.Tensor) -> torch.Tensor:
    return sent(torch.tensor(list(values), dtype=torch.int64), scores.device)
