"""Sessions of the suffix drafter without a corpus, and what their trees hold."""

from __future__ import annotations

import math

from draft_service.drafter import DraftLimits, SessionSpec
from draft_service.suffix_session import SuffixSession, Workspace
from paceline.tree import ROOT, TokenTree

LIMITS = DraftLimits(max_draft_tokens=48, max_tree_depth=48)
WORKSPACE = Workspace()


def session_over(token_ids: list[int], predicted: list[int] | None = None) -> SuffixSession:
    """Return a session without a corpus."""
    return SuffixSession(SessionSpec(token_ids, predicted or []), WORKSPACE)


def probability(tree: TokenTree, token_id: int, parent: int = ROOT) -> float:
    """Return the probability of a child of a node; 0 if there is none."""
    node = tree.child(parent, token_id)
    return 0.0 if node is None else math.exp(tree.log_probs[node - 1])
