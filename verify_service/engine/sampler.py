"""The target's own choice of a token from one row of logits. It decides nothing about drafts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from paceline.noise import MAX_NOISE, token_noise
from verify_service.engine.noise import gumbel_noise
from verify_service.engine.sampling import Rule, SamplingParams
from verify_service.engine.sequence import Sequence
from verify_service.engine.steps import TokenLogprobs

ROUNDING = 1e-9
"""More than two ways of computing one token's noise can differ by."""

NUCLEUS_HEAD = 1024
"""The nucleus is looked for among this many best tokens before everything is sorted."""


_NARROW = 4096
"""Rows up to this wide cost less than a call for each; they are searched all at once."""

_SEARCHED_BY_NUMPY = (torch.float32, torch.float64)
"""In a fifth of the time that torch takes for a row of a large vocabulary."""


Picker = Callable[[torch.Tensor, SamplingParams, int], int | None]
"""From adjusted scores, parameters and position to a token; None: there is none to be had."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One chosen token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


def choose(
    logits: torch.Tensor,
    sequence: Sequence,
    path: SequenceOf[int],
    picker: Picker | None = None,
    *,
    allowed: torch.Tensor | None = None,
) -> Choice | None:
    """
    Return the target's token after the committed tokens and ``path``, by ``pick`` or ``picker``.

    ``logits`` hold the ids that may be emitted  # [num_token_ids]. ``allowed``: the constraint's
    mask after ``path`` where it is known already. ``None``: the row holds NaN, infinity or nothing
    that may be chosen.
    """
    request = sequence.request
    scores = _adjusted(logits, sequence, path, allowed)
    position = len(sequence.token_ids) + len(path)
    token_id = (picker or pick)(scores, request.sampling, position)
    if token_id is None:
        return None
    if request.num_logprobs is None:
        return Choice(token_id)
    return Choice(token_id, _logprobs(logits, token_id, request.num_logprobs))


def best_choices(logits: torch.Tensor) -> list[Choice | None] | None:
    """
    Return what ``choose`` would for each row of a sequence that ``takes_best``.

    None at all for wide rows: looking at those of the walks alone costs less.
    """
    if logits.shape[0] == 0 or logits.shape[1] > _NARROW:
        return None
    best = logits.argmax(dim=1)
    is_usable = torch.isfinite(logits.gather(1, best[:, None])).flatten()
    return [
        Choice(token_id) if usable else None
        for token_id, usable in zip(best.tolist(), is_usable.tolist(), strict=True)
    ]


def takes_best(sequence: Sequence) -> bool:
    """Return whether a sequence's choices are the largest logits as they are, and no more."""
    request = sequence.request
    params, limits = request.sampling, request.limits
    changes_logits = (
        params.has_penalties
        or bool(params.logit_bias)
        or request.constraint is not None
        or (limits.min_tokens > 0 and bool(limits.stop_token_ids))
    )
    return params.is_greedy and request.num_logprobs is None and not changes_logits


def is_drawn_alike(sequence: Sequence) -> bool:
    """Return whether a choice depends on logits, parameters, path, seed and position alone."""
    params = sequence.request.sampling
    matches = params.is_greedy or params.rule is Rule.SAMPLE_AND_MATCH
    return matches and sequence.request.constraint is None


def pick(scores: torch.Tensor, params: SamplingParams, position: int) -> int | None:
    """
    Return ``argmax(scores / T + noise)`` over the tokens that the cuts leave; the first on a tie.

    Without noise at temperature 0. ``position`` is the index of the token being chosen.
    """
    best = _argmax(scores)
    peak = float(scores[best])
    if not math.isfinite(peak):
        return None
    if params.is_greedy:
        return best
    scaled = scores.to(torch.float64) / params.temperature
    token_ids = _support(scaled, params)
    if token_ids is None:
        reached = float(scaled[best]) + token_noise(params.seed, position, best)
        floor = reached - MAX_NOISE - ROUNDING
        token_ids = torch.nonzero(scaled >= floor).squeeze(1)
    total = scaled[token_ids] + gumbel_noise(params.seed, position, token_ids)
    return int(token_ids[total.argmax()])


def _argmax(scores: torch.Tensor) -> int:
    """Return where the largest score is, the first of equals; where NaN is, if there is any."""
    if scores.is_cuda or scores.dtype not in _SEARCHED_BY_NUMPY:
        return int(scores.argmax())
    return int(scores.numpy().argmax())


def left_by_cuts(
    scores: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """
    Return the ids that the cuts leave and their unnormalised log-probabilities, in no order.

    Temperature is above 0. ``None``: the scores hold NaN, infinity or nothing that may be chosen.
    """
    if not math.isfinite(float(scores.max())):
        return None
    scaled = scores.to(torch.float64) / params.temperature
    token_ids = _support(scaled, params)
    if token_ids is None:
        token_ids = torch.nonzero(torch.isfinite(scaled)).squeeze(1)
    return token_ids, scaled[token_ids]


def _support(scaled: torch.Tensor, params: SamplingParams) -> torch.Tensor | None:
    """Return the ids that top-k, top-p and min-p leave, or None where nothing is cut."""
    token_ids: torch.Tensor | None = None
    if 0 < params.top_k < scaled.numel():
        token_ids = _top_k(scaled, params.top_k)
    if params.top_p < 1.0:
        token_ids = _nucleus(scaled, token_ids, params.top_p)
    if params.min_p > 0.0:
        floor = float(scaled.max()) + math.log(params.min_p)
        if token_ids is None:
            token_ids = torch.nonzero(scaled >= floor).squeeze(1)
        else:
            token_ids = token_ids[scaled[token_ids] >= floor]
    return token_ids


def _top_k(scaled: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the ``count`` best tokens, ascending; of equal ones the first."""
    top = torch.topk(scaled, count + 1)
    floor, below = top.values[-2:].tolist()
    if floor > below:
        return top.indices[:-1].sort().values
    token_ids = torch.nonzero(scaled >= floor).squeeze(1)
    tied = torch.nonzero(scaled[token_ids] == floor).squeeze(1)
    is_kept = torch.ones_like(token_ids, dtype=torch.bool)
    is_kept[tied[count - token_ids.numel() :]] = False
    return token_ids[is_kept]


def _nucleus(scaled: torch.Tensor, token_ids: torch.Tensor | None, top_p: float) -> torch.Tensor:
    """Return the fewest best tokens whose probabilities reach ``top_p``."""
    values = scaled if token_ids is None else scaled[token_ids]
    log_total = torch.logsumexp(values, dim=0)
    if values.numel() > NUCLEUS_HEAD:
        head, order = torch.topk(values, NUCLEUS_HEAD)
        count = _num_within(head - log_total, top_p)
        # Where the cut falls among equals, or past the head, the order of all tokens decides.
        if count < NUCLEUS_HEAD and bool(head[count - 1] > head[count]):
            return order[:count] if token_ids is None else token_ids[order[:count]]
    best, order = torch.sort(values, descending=True, stable=True)
    order = order[: _num_within(best - log_total, top_p)]
    return order if token_ids is None else token_ids[order]


def _num_within(log_probs: torch.Tensor, top_p: float) -> int:
    """Return how many tokens, the best first, reach ``top_p`` together."""
    probabilities = torch.exp(log_probs)
    before = probabilities.cumsum(0) - probabilities
    return int((before < top_p).sum())


def _adjusted(
    logits: torch.Tensor,
    sequence: Sequence,
    path: SequenceOf[int],
    allowed: torch.Tensor | None,
) -> torch.Tensor:
    """Return the logits after all that comes before temperature; a copy if any applies."""
    params, limits = sequence.request.sampling, sequence.request.limits
    constraint = sequence.request.constraint
    is_short = sequence.num_emitted + len(path) < limits.min_tokens
    keeps_open = is_short and bool(limits.stop_token_ids)
    if not (params.has_penalties or params.logit_bias or keeps_open or constraint):
        return logits
    scores = logits.clone()
    if params.has_penalties:
        _penalize(scores, params, sequence, path)
    if params.logit_bias:
        token_ids = _ids(params.logit_bias.keys(), scores)
        scores[token_ids] += torch.tensor(
            list(params.logit_bias.values()), dtype=scores.dtype, device=scores.device
        )
    if keeps_open:
        scores[_ids(limits.stop_token_ids, scores)] = -math.inf
    if constraint is not None:
        mask = constraint.mask(path) if allowed is None else allowed
        scores.masked_fill_(~mask.to(scores.device), -math.inf)
    return scores


def _penalize(
    scores: torch.Tensor, params: SamplingParams, sequence: Sequence, path: SequenceOf[int]
) -> None:
    if params.repetition_penalty != 1.0:
        seen = _ids({*sequence.token_ids, *path}, scores)
        values = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        counts = Counter([*sequence.token_ids[sequence.prompt_len :], *path])
        if counts:
            amounts = torch.tensor(list(counts.values()), dtype=scores.dtype, device=scores.device)
            scores[_ids(counts, scores)] -= (
                params.presence_penalty + params.frequency_penalty * amounts
            )


def _ids(token_ids: Iterable[int], scores: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64, device=scores.device)


def _logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    values = torch.log_softmax(logits.to(torch.float64), dim=0)
    if num_top == 0:
        return TokenLogprobs(float(values[token_id]))
    top = torch.topk(values, min(num_top, values.numel()))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return TokenLogprobs(float(values[token_id]), tuple(pairs))
