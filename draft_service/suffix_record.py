"""
What is kept of a session between its calls, in one array: where a copied passage stands, and the
last tree with what was claimed at each of its nodes. The suffix automaton is not in it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draft_service.suffix_blocks import NUM_LISTED
from draft_service.suffix_compiled import Integers

Record: TypeAlias = Integers
"""The fields below, one after the other."""

POSITION: Final = 0
"""Of the source token that should come next in the copy, or ``NOWHERE``."""
NUM_DIFFERENT: Final = 1
"""Tokens since the copy has left its source; 0: it agrees."""
NUM_AGREED: Final = 2
"""Tokens for which the copy has agreed with its source without a difference."""
NUM_RESUMED: Final = 3
"""Positions at which the copy may go on, and behind them how each was found (``Resumption``)."""
MAX_RESUMED: Final = 5
RESUMED_AT: Final = 4
RESUMED_HOW: Final = RESUMED_AT + MAX_RESUMED

FIELD_AT: Final = RESUMED_HOW + MAX_RESUMED
"""Where the record before holds the field that is being written, or ``NOWHERE``."""
FIELD_LENGTH: Final = FIELD_AT + 1
"""Tokens of it that have been written."""
FIELD_COUNT: Final = FIELD_AT + 2
"""Records before this one that have the field."""
FIELD_END: Final = FIELD_AT + 3
"""Where the field of the record before ends, ``NOWHERE``, or ``NOT_SOUGHT``."""
NOT_SOUGHT: Final = -2

NUM_NODES: Final = FIELD_AT + 4
NUM_CLAIMS: Final = NUM_NODES + 1
NUM_CLAIMED: Final = NUM_NODES + 2

NODES_AT: Final = NUM_NODES + 3
"""The root, which holds no token, and the nodes of the last tree."""
NODE_TOKEN: Final = 0
NODE_PARENT: Final = 1
NODE_CLAIMS: Final = 2
"""Node: its first claim; the last one ends where those of the next node start."""
NODE_SIZE: Final = 3
MAX_NODES: Final = 64

CLAIMS_AT: Final = NODES_AT + (MAX_NODES + 2) * NODE_SIZE
"""Claims: a number of ``suffix_evidence``, and the first of the tokens it says come next."""
CLAIM_EVIDENCE: Final = 0
CLAIM_TOKENS: Final = 1
CLAIM_SIZE: Final = 2
MAX_CLAIMS: Final = 256

CLAIMED_AT: Final = CLAIMS_AT + (MAX_CLAIMS + 1) * CLAIM_SIZE
"""The tokens that claims name."""
MAX_CLAIMED: Final = 1024
MAX_GROUP: Final = NUM_LISTED
"""Tokens that one claim names; there is room for one group more than claims may name."""

RECORD_SIZE: Final = CLAIMED_AT + MAX_CLAIMED + MAX_GROUP


def new_record() -> NDArray[np.int32]:
    """Return the record of a session that copies nothing and has proposed nothing."""
    record = np.zeros(RECORD_SIZE, np.int32)
    record[POSITION] = record[FIELD_AT] = -1
    return record


def forget_field(record: Record) -> None:
    """Let no field go on in the text that comes next."""
    record[FIELD_AT] = -1


def start_copy(record: Record) -> None:
    """Expect a copy of the first text, of which nothing has come yet: the predicted output."""
    record[POSITION] = record[NUM_DIFFERENT] = record[NUM_AGREED] = 0
