"""The calls of a session, each compiled as one: commit tokens, propose a tree, follow a corpus."""

from __future__ import annotations

from draft_service.suffix_compiled import Integers, Reals, compiled_entry
from draft_service.suffix_cursor import advance, find_resumptions, join
from draft_service.suffix_extension import append, has_room
from draft_service.suffix_fields import note_field
from draft_service.suffix_growth import follow, grow, set_root_context
from draft_service.suffix_learning import observe
from draft_service.suffix_record import Record
from draft_service.suffix_scratch import NUM_SOURCES, OWN, Odds, Scratch
from draft_service.suffix_states import Memory


@compiled_entry
def commit_tokens(
    memory: Memory,
    record: Record,
    shifts: Reals,
    token_ids: Integers,
    start: int,
) -> int:
    """
    Learn from committed tokens and append them from the given one on.

    Returns where the memory was full, or how many tokens there are.
    """
    if start == 0:
        observe(record, shifts, token_ids)
    for index in range(start, len(token_ids)):
        token_id = token_ids[index]
        if not has_room(memory, token_id):
            return index
        advance(record, memory, token_id)
        note_field(record, memory)
        append(memory, token_id)
    join(record, memory)
    return len(token_ids)


@compiled_entry
def propose_tree(
    own: Memory,
    young: Memory,
    old: Memory,
    contexts: Integers,
    record: Record,
    shifts: Odds,
    scratch: Scratch,
    odds: Odds,
    max_nodes: int,
    max_depth: int,
    min_probability: float,
) -> int:
    """
    Leave a tree in the record and its log-probabilities in ``odds``; return how many nodes it has.

    ``contexts`` says where the latest tokens stand in the generations of the corpus. At least one
    node and at most ``MAX_NODES`` must be allowed.
    """
    find_resumptions(record, own)
    for source in range(OWN + 1, NUM_SOURCES):
        at = 2 * (source - 1)
        set_root_context(scratch, source, contexts[at], contexts[at + 1])
    return grow(
        own, young, old, record, shifts, scratch, odds, max_nodes, max_depth, min_probability
    )


@compiled_entry
def follow_corpus(memory: Memory, contexts: Integers, generation: int, token_ids: Integers) -> None:
    """Move on, by some tokens, where the latest tokens stand in a generation of the corpus."""
    state, length = contexts[2 * generation], contexts[2 * generation + 1]
    for token_id in token_ids:
        state, length = follow(memory, state, length, token_id)
    contexts[2 * generation] = state
    contexts[2 * generation + 1] = length
