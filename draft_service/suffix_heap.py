"""The nodes that may join a tree, the likeliest first: a binary heap."""

from __future__ import annotations

from draft_service.suffix_compiled import (
    compiled,
)
from draft_service.suffix_scratch import (
    CANDIDATE_LENGTH,
    CANDIDATE_ODDS_AT,
    CANDIDATE_PARENT,
    CANDIDATE_SIZE,
    CANDIDATE_SOURCE,
    CANDIDATE_STATE,
    CANDIDATE_TOKEN,
    CANDIDATES_AT,
    HEAP_AT,
    HEAP_SIZE,
    MAX_CANDIDATES,
    NUM_CANDIDATES,
    Odds,
    Scratch,
)


@compiled
def push(
    scratch: Scratch,
    odds: Odds,
    likely: float,
    parent: int,
    token_id: int,
    source: int,
    state: int,
    length: int,
) -> None:
    """Let a node wait to join the tree, whose path is this likely."""
    candidate = scratch[NUM_CANDIDATES]
    if candidate == MAX_CANDIDATES:
        return
    scratch[NUM_CANDIDATES] += 1
    odds[CANDIDATE_ODDS_AT + candidate] = likely
    fields = CANDIDATES_AT + candidate * CANDIDATE_SIZE
    scratch[fields + CANDIDATE_PARENT] = parent
    scratch[fields + CANDIDATE_TOKEN] = token_id
    scratch[fields + CANDIDATE_SOURCE] = source
    scratch[fields + CANDIDATE_STATE] = state
    scratch[fields + CANDIDATE_LENGTH] = length
    place = scratch[HEAP_SIZE]
    scratch[HEAP_SIZE] += 1
    while place > 0:
        above = (place - 1) // 2
        if not _is_likelier(scratch, odds, candidate, scratch[HEAP_AT + above]):
            break
        scratch[HEAP_AT + place] = scratch[HEAP_AT + above]
        place = above
    scratch[HEAP_AT + place] = candidate


@compiled
def _is_likelier(scratch: Scratch, odds: Odds, one: int, other: int) -> bool:
    """Return whether a candidate comes before another; of equals the earlier one does."""
    difference = odds[CANDIDATE_ODDS_AT + one] - odds[CANDIDATE_ODDS_AT + other]
    return one < other if difference == 0.0 else difference > 0.0


@compiled
def pop(scratch: Scratch, odds: Odds) -> int:
    """Remove the likeliest candidate and return its number."""
    best = scratch[HEAP_AT]
    scratch[HEAP_SIZE] -= 1
    size, place = scratch[HEAP_SIZE], 0
    moved = scratch[HEAP_AT + size]
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _is_likelier(
            scratch, odds, scratch[HEAP_AT + below + 1], scratch[HEAP_AT + below]
        ):
            below += 1
        if not _is_likelier(scratch, odds, scratch[HEAP_AT + below], moved):
            break
        scratch[HEAP_AT + place] = scratch[HEAP_AT + below]
        place = below
    scratch[HEAP_AT + place] = moved
    return best
