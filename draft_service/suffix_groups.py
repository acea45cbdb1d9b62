"""
What speaks at a node of a growing tree: the tokens that followed a context, or a copied passage.

Tokens that a longer context has named are left out.
"""

from __future__ import annotations

from draft_service.suffix_blocks import list_at, target_of
from draft_service.suffix_compiled import compiled, prefetch
from draft_service.suffix_cursor import AT_FIELD_END, resumed_depth, text_token
from draft_service.suffix_evidence import (
    FIELD_BEGINS,
    IN_CORPUS,
    NO_SUPPORT,
    agreed_bucket,
    evidence_of,
    guess_bucket,
    length_bucket,
    support_of,
)
from draft_service.suffix_record import (
    CLAIM_SIZE,
    CLAIM_TOKENS,
    CLAIMED_AT,
    CLAIMS_AT,
    MAX_GROUP,
    NODE_CLAIMS,
    NODE_SIZE,
    NODES_AT,
    NUM_AGREED,
    NUM_CLAIMED,
    NUM_CLAIMS,
    NUM_DIFFERENT,
    RESUMED_AT,
    RESUMED_HOW,
    Record,
)
from draft_service.suffix_scratch import (
    BEGINS_FIELD,
    GROUP_AT,
    GROUP_COUNT,
    GROUP_TOKENS,
    MEMBER_COUNT,
    MEMBER_END,
    MEMBER_SIZE,
    MEMBER_TARGET,
    OWN,
    SPOT_DEPTH,
    SPOT_SIZE,
    SPOTS_AT,
    WALK_AT,
    Scratch,
)
from draft_service.suffix_states import (
    COUNT,
    END,
    ENTRY_SIZE,
    ENTRY_TARGET,
    ENTRY_TOKEN,
    LENGTH,
    LINK,
    NOWHERE,
    ROOT_STATE,
    SEPARATOR,
    Memory,
    num_followers,
    state_at,
)


@compiled
def speak(
    memory: Memory, source: int, record: Record, scratch: Scratch, node: int, limit: int
) -> int:
    """Make the group of a source's longest context and go on to the next shorter one."""
    walk = WALK_AT + 2 * source
    state, length = scratch[walk], scratch[walk + 1]
    link = memory[state_at(memory, state) + LINK]
    scratch[walk] = link
    scratch[walk + 1] = memory[state_at(memory, link) + LENGTH]
    prefetch(memory, list_at(memory, link))
    prefetch(memory, state_at(memory, memory[state_at(memory, link) + LINK]))
    scratch[GROUP_TOKENS] = scratch[GROUP_COUNT] = 0
    if length > scratch[walk + 1]:  # else the context has been split off since it was noted
        _list_followers(memory, state, record, scratch, node, limit)
    if scratch[GROUP_TOKENS] == 0:
        return 0
    if source == OWN and scratch[BEGINS_FIELD]:
        support = FIELD_BEGINS
    else:
        support = _support(memory, link, record[CLAIMED_AT + record[NUM_CLAIMED]])
    evidence = evidence_of(
        length_bucket(length), scratch[GROUP_COUNT], scratch[GROUP_TOKENS], support
    )
    return evidence if source == OWN else evidence + IN_CORPUS


@compiled
def resume(own: Memory, record: Record, scratch: Scratch, node: int, number: int) -> int:
    """Make the group of one position where the copy may go on."""
    depth = scratch[SPOTS_AT + node * SPOT_SIZE + SPOT_DEPTH]
    token_id = text_token(own, record[RESUMED_AT + number] + depth)
    depth = resumed_depth(record, number, depth)
    scratch[GROUP_TOKENS] = 0
    if token_id == SEPARATOR or _is_claimed(record, node, token_id):
        return 0
    record[CLAIMED_AT + record[NUM_CLAIMED]] = token_id
    scratch[GROUP_TOKENS] = scratch[GROUP_COUNT] = scratch[GROUP_AT] = 1
    if scratch[BEGINS_FIELD] and (depth > 0 or record[RESUMED_HOW + number] < AT_FIELD_END):
        support = FIELD_BEGINS
    else:
        support = _support(own, scratch[WALK_AT + 2 * OWN], token_id)
    return evidence_of(_copy_bucket(record, number, depth), 1, 1, support)


@compiled
def _copy_bucket(record: Record, number: int, depth: int) -> int:
    how = record[RESUMED_HOW + number]
    if record[NUM_DIFFERENT] == 0 and how < AT_FIELD_END:
        return agreed_bucket(record[NUM_AGREED] + depth)
    return guess_bucket(how) if depth == 0 else agreed_bucket(depth)


@compiled
def _support(memory: Memory, state: int, token_id: int) -> int:
    if state == ROOT_STATE:
        return NO_SUPPORT
    target = target_of(memory, state, token_id)
    if target == NOWHERE:
        return 1
    return support_of(
        memory[state_at(memory, target) + COUNT], memory[state_at(memory, state) + COUNT]
    )


@compiled
def _list_followers(
    memory: Memory, state: int, record: Record, scratch: Scratch, node: int, limit: int
) -> None:
    """Put the tokens that followed a state, and that no longer context has named, in the group."""
    start, number = list_at(memory, state), min(num_followers(memory, state), MAX_GROUP)
    for entry in range(start, start + min(number, limit) * ENTRY_SIZE, ENTRY_SIZE):
        prefetch(memory, state_at(memory, memory[entry + ENTRY_TARGET]))
    for entry in range(start, start + number * ENTRY_SIZE, ENTRY_SIZE):
        token_id = memory[entry + ENTRY_TOKEN]
        if not _is_claimed(record, node, token_id):
            _join_group(memory, record, scratch, token_id, memory[entry + ENTRY_TARGET])
            if scratch[GROUP_TOKENS] == limit:
                break


@compiled
def _join_group(
    memory: Memory, record: Record, scratch: Scratch, token_id: int, target: int
) -> None:
    number = scratch[GROUP_TOKENS]
    fields, member = state_at(memory, target), GROUP_AT + MEMBER_SIZE * number
    record[CLAIMED_AT + record[NUM_CLAIMED] + number] = token_id
    scratch[member + MEMBER_COUNT] = memory[fields + COUNT]
    scratch[member + MEMBER_TARGET] = target
    scratch[member + MEMBER_END] = memory[fields + END]
    scratch[GROUP_TOKENS] += 1
    prefetch(memory, state_at(memory, memory[fields + LINK]))
    prefetch(memory, list_at(memory, target))
    scratch[GROUP_COUNT] += memory[fields + COUNT]


@compiled
def _is_claimed(record: Record, node: int, token_id: int) -> bool:
    """Return whether a claim of the node has named the token."""
    claim = record[NODES_AT + node * NODE_SIZE + NODE_CLAIMS]
    if claim == record[NUM_CLAIMS]:
        return False
    first = record[CLAIMS_AT + claim * CLAIM_SIZE + CLAIM_TOKENS]
    for index in range(first, record[NUM_CLAIMED]):
        if record[CLAIMED_AT + index] == token_id:
            return True
    return False
