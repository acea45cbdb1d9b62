"""What a commit teaches about the last tree: which claims held the token that came."""

from __future__ import annotations

from draft_service.suffix_compiled import Integers, Reals, compiled
from draft_service.suffix_evidence import learn
from draft_service.suffix_record import (
    CLAIM_EVIDENCE,
    CLAIM_SIZE,
    CLAIM_TOKENS,
    CLAIMED_AT,
    CLAIMS_AT,
    NODE_CLAIMS,
    NODE_PARENT,
    NODE_SIZE,
    NODE_TOKEN,
    NODES_AT,
    NUM_CLAIMS,
    NUM_NODES,
    Record,
)
from draft_service.suffix_states import NOWHERE


@compiled
def observe(record: Record, shifts: Reals, token_ids: Integers) -> None:
    """Teach which claims were right along the tokens committed after the root; forget the tree."""
    node = 0
    for token_id in token_ids:
        if node == NOWHERE:
            break
        _observe_node(record, shifts, node, token_id)
        node = _child(record, node, token_id)
    record[NUM_CLAIMS] = record[NUM_NODES] = 0
    record[NODES_AT + NODE_CLAIMS] = 0


@compiled
def _observe_node(record: Record, shifts: Reals, node: int, token_id: int) -> None:
    fields = NODES_AT + node * NODE_SIZE
    end = record[NUM_CLAIMS]
    if node < record[NUM_NODES]:
        end = record[fields + NODE_SIZE + NODE_CLAIMS]
    for claim in range(record[fields + NODE_CLAIMS], end):
        at = CLAIMS_AT + claim * CLAIM_SIZE
        hit = False
        for index in range(record[at + CLAIM_TOKENS], record[at + CLAIM_SIZE + CLAIM_TOKENS]):
            hit |= record[CLAIMED_AT + index] == token_id
        learn(record[at + CLAIM_EVIDENCE], shifts, hit)
        if hit:
            return


@compiled
def _child(record: Record, parent: int, token_id: int) -> int:
    for node in range(parent + 1, record[NUM_NODES] + 1):
        fields = NODES_AT + node * NODE_SIZE
        if record[fields + NODE_PARENT] == parent and record[fields + NODE_TOKEN] == token_id:
            return node
    return NOWHERE
