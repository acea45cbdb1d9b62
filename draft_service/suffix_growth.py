"""
Grows a tree from the contexts of an automaton, the likeliest node first.

At each node the longest context of its path speaks first, then the shorter ones, each about the
tokens that no longer one has named. A node's contexts are found anew at each depth, so that the
estimates rise along a copied passage and other sources join where the path comes across them.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from draft_service.suffix_blocks import target_of
from draft_service.suffix_compiled import compiled
from draft_service.suffix_cursor import AT_FIELD_END, resumed_depth, text_token
from draft_service.suffix_evidence import (
    LATER,
    hit_rate,
)
from draft_service.suffix_fields import num_fields_behind
from draft_service.suffix_groups import (
    resume,
    speak,
)
from draft_service.suffix_heap import (
    pop,
    push,
)
from draft_service.suffix_record import (
    CLAIM_EVIDENCE,
    CLAIM_SIZE,
    CLAIM_TOKENS,
    CLAIMED_AT,
    CLAIMS_AT,
    FIELD_LENGTH,
    MAX_CLAIMED,
    MAX_CLAIMS,
    NODE_CLAIMS,
    NODE_PARENT,
    NODE_SIZE,
    NODE_TOKEN,
    NODES_AT,
    NUM_AGREED,
    NUM_CLAIMED,
    NUM_CLAIMS,
    NUM_DIFFERENT,
    NUM_NODES,
    NUM_RESUMED,
    RESUMED_AT,
    RESUMED_HOW,
    Record,
)
from draft_service.suffix_scratch import (
    BEGINS_FIELD,
    CANDIDATE_LENGTH,
    CANDIDATE_ODDS_AT,
    CANDIDATE_PARENT,
    CANDIDATE_SIZE,
    CANDIDATE_SOURCE,
    CANDIDATE_STATE,
    CANDIDATE_TOKEN,
    CANDIDATES_AT,
    GROUP_AT,
    GROUP_COUNT,
    GROUP_TOKENS,
    HEAP_SIZE,
    MEMBER_COUNT,
    MEMBER_END,
    MEMBER_SIZE,
    MEMBER_TARGET,
    NODE_ODDS_AT,
    NUM_CANDIDATES,
    NUM_SOURCES,
    OWN,
    PATH_ODDS_AT,
    REMAINING,
    SPOT_CONTEXTS,
    SPOT_DEPTH,
    SPOT_RESUMED,
    SPOT_SIZE,
    SPOTS_AT,
    WALK_AT,
    Odds,
    Scratch,
)
from draft_service.suffix_states import (
    CONTEXT,
    LENGTH,
    LINK,
    NOWHERE,
    NUM_TOKENS,
    ROOT_STATE,
    Memory,
    state_at,
)

_MAX_GROUPS: Final = 10
"""Contexts that speak at one node."""
_MIN_GUESSED_LENGTH: Final = 3
"""Contexts from this length on are better guesses than going on after a difference."""
_MAX_FRAME_LENGTH: Final = 16
"""What agrees for longer is a copy, fields and all."""
_LEAST_TO_LOOK: Final = 0.15
"""Behind a path that is less likely, nobody looks whether a field begins: it costs cache misses."""
_LATEST_BONUS: Final = 1.0
"""Added to the count of the follower of the latest occurrence."""
_LEAST_REMAINING: Final = 2.5
"""No shorter context speaks when less than so many times the least probability is left: it would
give its best token about a third of that."""
_TOKENS_PER_ODDS: Final = 0.25
"""Tokens of a context that are worth looking at, for each such multiple that is left."""

Sources: TypeAlias = tuple[Memory, Memory, Memory]


@compiled
def grow(
    own: Memory,
    young: Memory,
    old: Memory,
    record: Record,
    shifts: Odds,
    scratch: Scratch,
    odds: Odds,
    max_nodes: int,
    max_depth: int,
    min_probability: float,
) -> int:
    """
    Leave the tree of the likeliest continuations in the record; return how many nodes it has.

    The contexts of the root in the corpus, and the positions at which a copy may go on, are there
    already. Log-probabilities are left in ``odds``.
    """
    sources = (own, young, old)
    _start(own, record, scratch, odds)
    node = 0
    while True:
        if scratch[SPOTS_AT + node * SPOT_SIZE + SPOT_DEPTH] < max_depth:
            _expand(sources, record, shifts, scratch, odds, node, min_probability)
        if scratch[HEAP_SIZE] == 0:
            return record[NUM_NODES]
        candidate = pop(scratch, odds)
        node = _add_node(own, record, scratch, odds, candidate)
        if node == max_nodes:
            return node
        _find_contexts(sources, scratch, node, candidate)


@compiled
def set_root_context(scratch: Scratch, source: int, state: int, length: int) -> None:
    """Say where the latest tokens stand in a source."""
    scratch[SPOTS_AT + SPOT_CONTEXTS + 2 * source] = state
    scratch[SPOTS_AT + SPOT_CONTEXTS + 2 * source + 1] = length


@compiled
def follow(memory: Memory, state: int, length: int, token_id: int) -> tuple[int, int]:
    """Return the state and length of the longest context after one more token."""
    target = target_of(memory, state, token_id)
    while target == NOWHERE:
        if state == ROOT_STATE:
            return ROOT_STATE, 0
        state = memory[state_at(memory, state) + LINK]
        length = memory[state_at(memory, state) + LENGTH]
        target = target_of(memory, state, token_id)
    return target, length + 1


@compiled
def _start(own: Memory, record: Record, scratch: Scratch, odds: Odds) -> None:
    record[NUM_NODES] = record[NUM_CLAIMS] = record[NUM_CLAIMED] = 0
    record[NODES_AT + NODE_CLAIMS] = 0
    scratch[NUM_CANDIDATES] = scratch[HEAP_SIZE] = 0
    context = own[CONTEXT]
    set_root_context(scratch, OWN, context, own[state_at(own, context) + LENGTH])
    scratch[SPOTS_AT + SPOT_DEPTH] = 0
    scratch[SPOTS_AT + SPOT_RESUMED] = (1 << record[NUM_RESUMED]) - 1
    odds[PATH_ODDS_AT] = 1.0


@compiled
def _add_node(own: Memory, record: Record, scratch: Scratch, odds: Odds, candidate: int) -> int:
    """Turn a candidate into a node, with the positions of the copy that agree with its path."""
    fields = CANDIDATES_AT + candidate * CANDIDATE_SIZE
    parent, token_id = scratch[fields + CANDIDATE_PARENT], scratch[fields + CANDIDATE_TOKEN]
    record[NUM_NODES] += 1
    node = record[NUM_NODES]
    at = NODES_AT + node * NODE_SIZE
    record[at + NODE_TOKEN] = token_id
    record[at + NODE_PARENT] = parent
    record[at + NODE_CLAIMS] = record[NUM_CLAIMS]
    path = odds[CANDIDATE_ODDS_AT + candidate]
    odds[PATH_ODDS_AT + node] = path
    odds[NODE_ODDS_AT + node] = math.log(path / odds[PATH_ODDS_AT + parent])
    _place(own, record, scratch, node, parent, token_id)
    return node


@compiled
def _place(
    own: Memory, record: Record, scratch: Scratch, node: int, parent: int, token_id: int
) -> None:
    """Note how deep a node is, and which positions of the copy agree with its path."""
    spot, above = SPOTS_AT + node * SPOT_SIZE, SPOTS_AT + parent * SPOT_SIZE
    depth, resumed = scratch[above + SPOT_DEPTH], scratch[above + SPOT_RESUMED]
    agreeing = 0
    for number in range(record[NUM_RESUMED]):
        bit = 1 << number
        waits = resumed_depth(record, number, depth) < 0
        if resumed & bit and (
            waits or text_token(own, record[RESUMED_AT + number] + depth) == token_id
        ):
            agreeing |= bit
    scratch[spot + SPOT_DEPTH] = depth + 1
    scratch[spot + SPOT_RESUMED] = agreeing


@compiled
def _find_contexts(sources: Sources, scratch: Scratch, node: int, candidate: int) -> None:
    """Note where the path to a node stands in each source."""
    fields = CANDIDATES_AT + candidate * CANDIDATE_SIZE
    parent, token_id = scratch[fields + CANDIDATE_PARENT], scratch[fields + CANDIDATE_TOKEN]
    spot, above = SPOTS_AT + node * SPOT_SIZE, SPOTS_AT + parent * SPOT_SIZE
    for source in range(NUM_SOURCES):
        context = SPOT_CONTEXTS + 2 * source
        if scratch[fields + CANDIDATE_SOURCE] == source:
            state = scratch[fields + CANDIDATE_STATE]
            length = scratch[fields + CANDIDATE_LENGTH]
        elif sources[source][NUM_TOKENS] == 0:
            state, length = ROOT_STATE, 0
        else:
            state, length = follow(
                sources[source], scratch[above + context], scratch[above + context + 1], token_id
            )
        scratch[spot + context] = state
        scratch[spot + context + 1] = length


@compiled
def _expand(
    sources: Sources,
    record: Record,
    shifts: Odds,
    scratch: Scratch,
    odds: Odds,
    node: int,
    min_probability: float,
) -> None:
    """Offer the tokens that may follow a node, until what is left is too unlikely."""
    spot = SPOTS_AT + node * SPOT_SIZE
    for field in range(2 * NUM_SOURCES):
        scratch[WALK_AT + field] = scratch[spot + SPOT_CONTEXTS + field]
    odds[REMAINING] = odds[PATH_ODDS_AT + node]
    depth = scratch[spot + SPOT_DEPTH]
    resumed = _without_waiting(record, scratch[spot + SPOT_RESUMED], depth)
    scratch[BEGINS_FIELD] = _begins_field(sources[OWN], scratch, odds, node)
    for _ in range(_MAX_GROUPS):
        source = _longest_source(scratch)
        length = scratch[WALK_AT + 2 * source + 1]
        number = _next_resumption(resumed)
        if number != NOWHERE and length < _length_to_precede(record, number, depth):
            resumed ^= 1 << number
            evidence = resume(sources[OWN], record, scratch, node, number)
            source = NOWHERE
        elif length == 0:
            break
        else:
            limit = int(odds[REMAINING] / min_probability * _TOKENS_PER_ODDS) + 1
            evidence = speak(sources[source], source, record, scratch, node, limit)
        if scratch[GROUP_TOKENS]:
            _offer(
                record, shifts, scratch, odds, node, evidence, source, length + 1, min_probability
            )
        if odds[REMAINING] < _LEAST_REMAINING * min_probability:
            break


@compiled
def _begins_field(own: Memory, scratch: Scratch, odds: Odds, node: int) -> int:
    context, length = scratch[WALK_AT + 2 * OWN], scratch[WALK_AT + 2 * OWN + 1]
    if length > _MAX_FRAME_LENGTH or odds[PATH_ODDS_AT + node] < _LEAST_TO_LOOK:
        return 0
    is_root = scratch[SPOTS_AT + node * SPOT_SIZE + SPOT_DEPTH] == 0
    return int(num_fields_behind(own, context, length, int(is_root)) > 0)


@compiled
def _longest_source(scratch: Scratch) -> int:
    longest = OWN
    for source in range(1, NUM_SOURCES):
        if scratch[WALK_AT + 2 * source + 1] > scratch[WALK_AT + 2 * longest + 1]:
            longest = source
    return longest


@compiled
def _without_waiting(record: Record, resumed: int, depth: int) -> int:
    for number in range(record[NUM_RESUMED]):
        if resumed_depth(record, number, depth) < 0:
            resumed &= ~(1 << number)
    return resumed


@compiled
def _next_resumption(resumed: int) -> int:
    number = 0
    while resumed >> number:
        if resumed >> number & 1:
            return number
        number += 1
    return NOWHERE


@compiled
def _length_to_precede(record: Record, number: int, depth: int) -> int:
    """Return from which length on a context is a better guess than where the copy goes on."""
    if record[RESUMED_HOW + number] >= AT_FIELD_END:
        behind = resumed_depth(record, number, depth)
        if behind > 0:
            return _MIN_GUESSED_LENGTH + behind
        # Shorter contexts are of the field alone.
        return max(record[FIELD_LENGTH], _MIN_GUESSED_LENGTH) + depth
    if record[NUM_DIFFERENT] > 0:
        return _MIN_GUESSED_LENGTH + depth
    return 2 * (record[NUM_AGREED] + depth) + 4


@compiled
def _offer(
    record: Record,
    shifts: Odds,
    scratch: Scratch,
    odds: Odds,
    node: int,
    evidence: int,
    source: int,
    length: int,
    min_probability: float,
) -> None:
    """Claim that a token of the group comes next; make candidates of those that are likely."""
    if (
        record[NUM_CLAIMS] == MAX_CLAIMS
        or record[NUM_CLAIMED] + scratch[GROUP_TOKENS] > MAX_CLAIMED
    ):
        odds[REMAINING] = 0.0
        return
    if record[NUM_CLAIMS] > record[NODES_AT + node * NODE_SIZE + NODE_CLAIMS]:
        evidence += LATER
    claim = CLAIMS_AT + record[NUM_CLAIMS] * CLAIM_SIZE
    first = record[NUM_CLAIMED]
    num_tokens = scratch[GROUP_TOKENS]
    record[claim + CLAIM_EVIDENCE] = evidence
    record[claim + CLAIM_TOKENS] = first
    record[NUM_CLAIMS] += 1
    record[NUM_CLAIMED] += num_tokens
    record[claim + CLAIM_SIZE + CLAIM_TOKENS] = record[NUM_CLAIMED]
    rate = hit_rate(evidence, shifts)
    unit = odds[REMAINING] * rate / (scratch[GROUP_COUNT] + _LATEST_BONUS)
    latest = _latest_of(scratch)
    for number in range(num_tokens):
        member = GROUP_AT + MEMBER_SIZE * number
        weight = scratch[member + MEMBER_COUNT] + (_LATEST_BONUS if number == latest else 0.0)
        if unit * weight >= min_probability:
            token_id, target = record[CLAIMED_AT + first + number], scratch[member + MEMBER_TARGET]
            push(scratch, odds, unit * weight, node, token_id, source, target, length)
    odds[REMAINING] *= 1.0 - rate


@compiled
def _latest_of(scratch: Scratch) -> int:
    latest, latest_end = 0, NOWHERE
    for number in range(scratch[GROUP_TOKENS]):
        end = scratch[GROUP_AT + MEMBER_SIZE * number + MEMBER_END]
        if end > latest_end:
            latest, latest_end = number, end
    return latest
