"""Bar of issue 2: what a tree of 64 nodes weighs on the wire."""

from __future__ import annotations

import random
from typing import Final

from bench.bar import Bar
from paceline.codec import tree_to_proto
from paceline.tree import TokenTree
from paceline.v1 import draft_service_pb2

NUM_NODES: Final = 64
VOCAB_SIZE: Final = 262_144
SAMPLES: Final = 200


async def measure() -> list[Bar]:
    """Return the largest message of many random trees, log-probabilities included."""
    rng = random.Random(2)
    largest = max(_message_bytes(_random_tree(rng)) for _ in range(SAMPLES))
    return [Bar(2, f"bytes of a proposal of {NUM_NODES} nodes", largest, 600, "at most")]


def _random_tree(rng: random.Random) -> TokenTree:
    return TokenTree(
        token_ids=tuple(rng.sample(range(VOCAB_SIZE), NUM_NODES)),
        parents=tuple(rng.randrange(node) for node in range(1, NUM_NODES + 1)),
        log_probs=tuple(-rng.random() for _ in range(NUM_NODES)),
    )


def _message_bytes(tree: TokenTree) -> int:
    proposal = draft_service_pb2.Proposal(
        session_id=2**40, base_len=100_000, tree=tree_to_proto(tree)
    )
    return draft_service_pb2.DraftResponse(proposals=[proposal]).ByteSize()
