"""
Where growing a tree keeps what it works on, in one array of integers and one of probabilities.

Nothing in them outlives a proposal except the log-probabilities of the nodes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from draft_service.suffix_compiled import Integers, Reals
from draft_service.suffix_record import MAX_GROUP, MAX_NODES

MAX_CANDIDATES: Final = 512
"""Nodes that wait to join the tree; more, which are less likely, are dropped."""

NUM_SOURCES: Final = 3
OWN: Final = 0
"""The session's own text; the other sources are the generations of the tenant's corpus."""

Scratch: TypeAlias = Integers
NUM_CANDIDATES: Final = 0
HEAP_SIZE: Final = 1
GROUP_TOKENS: Final = 2
GROUP_COUNT: Final = 3
"""Occurrences of the group's tokens, all together."""

BEGINS_FIELD: Final = 4
"""1: at the node that is being expanded a field begins."""

WALK_AT: Final = 5
"""State and length in each source, on the way from long contexts to short ones."""
GROUP_AT: Final = WALK_AT + 2 * NUM_SOURCES
"""The group's tokens: count, target and end of the latest occurrence of each."""
MEMBER_COUNT: Final = 0
MEMBER_TARGET: Final = 1
MEMBER_END: Final = 2
MEMBER_SIZE: Final = 3

SPOTS_AT: Final = GROUP_AT + MEMBER_SIZE * MAX_GROUP
"""For the root and each node: its depth, the positions at which a copy may go on that agree with
its path (a bit each), and state and length of its path in each source."""
SPOT_DEPTH: Final = 0
SPOT_RESUMED: Final = 1
SPOT_CONTEXTS: Final = 2
SPOT_SIZE: Final = SPOT_CONTEXTS + 2 * NUM_SOURCES

CANDIDATES_AT: Final = SPOTS_AT + (MAX_NODES + 1) * SPOT_SIZE
CANDIDATE_PARENT: Final = 0
CANDIDATE_TOKEN: Final = 1
CANDIDATE_SOURCE: Final = 2
"""Candidate: in which source its path's state and length are known, or ``NOWHERE``."""
CANDIDATE_STATE: Final = 3
CANDIDATE_LENGTH: Final = 4
CANDIDATE_SIZE: Final = 5
HEAP_AT: Final = CANDIDATES_AT + MAX_CANDIDATES * CANDIDATE_SIZE
SCRATCH_SIZE: Final = HEAP_AT + MAX_CANDIDATES

Odds: TypeAlias = Reals
NODE_ODDS_AT: Final = 0
"""Log-probabilities of the nodes given their parents."""
PATH_ODDS_AT: Final = MAX_NODES + 1
"""Probabilities of the paths to the nodes."""
CANDIDATE_ODDS_AT: Final = PATH_ODDS_AT + MAX_NODES + 1
REMAINING: Final = CANDIDATE_ODDS_AT + MAX_CANDIDATES
"""What the claims at a node have left to others of the probability of its path."""
ODDS_SIZE: Final = REMAINING + 1
