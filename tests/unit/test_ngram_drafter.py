"""What prompt lookup proposes, and how sure it is."""

from __future__ import annotations

import math

from draft_service.drafter import DraftJob, DraftLimits, SessionSpec
from draft_service.ngram import NgramDrafter, NgramOptions, NgramSession
from paceline.tree import ROOT, TokenTree

LIMITS = DraftLimits(max_draft_tokens=48, max_tree_depth=48)
PASSAGE = list(range(100, 160))


def session_over(token_ids: list[int], predicted: list[int] | None = None) -> NgramSession:
    """Return a session with default options."""
    return NgramSession(SessionSpec(token_ids, predicted or []), NgramOptions())


def probability(tree: TokenTree, token_id: int) -> float:
    """Return the probability of a child of the root; 0 if there is none."""
    node = tree.child(ROOT, token_id)
    return 0.0 if node is None else math.exp(tree.log_probs[node - 1])


def test_a_text_without_repetition_gets_an_empty_tree() -> None:
    assert session_over(PASSAGE).propose(LIMITS).tree == TokenTree()


def test_an_empty_session_gets_an_empty_tree() -> None:
    """B043: nothing is needed for a session to be legal."""
    assert session_over([]).propose(LIMITS).tree == TokenTree()


def test_a_copied_passage_is_proposed_to_its_end() -> None:
    draft = session_over([*PASSAGE, 7, *PASSAGE[:10]]).propose(LIMITS)

    assert draft.tree.num_held(PASSAGE[10:]) >= 32


def test_a_proposal_reaches_deeper_than_one_verification_after_some_success() -> None:
    session = session_over([*PASSAGE, *PASSAGE[:10]])
    for start in range(10, 40, 3):
        session.propose(LIMITS)
        session.commit(session.base_len, PASSAGE[start : start + 3])

    tree = session.propose(LIMITS).tree

    assert max(tree.depths()) == LIMITS.max_tree_depth


def test_different_continuations_become_siblings() -> None:
    tree = session_over([1, 2, 50, 7, 1, 2, 60, 8, 1, 2, 50, 9, 1, 2]).propose(LIMITS).tree

    assert probability(tree, 50) > probability(tree, 60) > 0


def test_the_longest_match_is_the_likeliest() -> None:
    tree = session_over([1, 2, 3, 4, 50, 9, 4, 60, 8, 4, 60, 1, 2, 3, 4]).propose(LIMITS).tree

    assert probability(tree, 50) > probability(tree, 60)


def test_of_equal_matches_the_latest_is_listed_first() -> None:
    tree = session_over([1, 2, 50, 1, 2, 60, 1, 2]).propose(LIMITS).tree

    assert tree.token_ids[0] == 60


def test_one_occurrence_after_one_token_claims_little() -> None:
    tree = session_over([1, 50, 2, 3, 4, 1]).propose(LIMITS).tree

    assert 0.05 < probability(tree, 50) < 0.4


def test_more_occurrences_that_agree_claim_more() -> None:
    once = session_over([1, 2, 50, 3, 1, 2]).propose(LIMITS).tree
    often = session_over([1, 2, 50, 3, 1, 2, 50, 4, 1, 2, 50, 5, 1, 2]).propose(LIMITS).tree

    assert probability(often, 50) > probability(once, 50) + 0.1


def test_a_repetition_goes_on_beyond_the_end_of_the_text() -> None:
    tree = session_over([5, 6, 7] * 10).propose(LIMITS).tree

    assert tree.num_held([5, 6, 7] * 10) >= 24


def test_the_predicted_output_is_proposed_from_the_first_token() -> None:
    tree = session_over([1, 2, 3], predicted=PASSAGE).propose(LIMITS).tree

    assert tree.num_held(PASSAGE) >= 4
    assert probability(tree, PASSAGE[0]) > 0.3


def test_a_copy_goes_on_after_a_replaced_token() -> None:
    session = session_over([*PASSAGE, *PASSAGE[:20]])
    session.propose(LIMITS)

    session.commit(session.base_len, [9999])

    tree = session.propose(LIMITS).tree
    assert probability(tree, PASSAGE[21]) > 0


def test_a_copy_goes_on_after_an_inserted_token() -> None:
    session = session_over([*PASSAGE, *PASSAGE[:20]])
    session.propose(LIMITS)

    session.commit(session.base_len, [9999])

    tree = session.propose(LIMITS).tree
    assert probability(tree, PASSAGE[20]) > 0


def test_a_session_learns_from_hits_and_from_misses() -> None:
    lucky = session_over([*PASSAGE, *PASSAGE[:4]])
    unlucky = session_over([*PASSAGE, *PASSAGE[:4]])
    at_first = probability(lucky.propose(LIMITS).tree, PASSAGE[4])
    for step in range(8):
        start = 4 + 3 * step
        lucky.propose(LIMITS)
        lucky.commit(lucky.base_len, PASSAGE[start : start + 3])
        unlucky.propose(LIMITS)
        unlucky.commit(unlucky.base_len, [9000 + step, *PASSAGE[:4]])

    lucky.commit(lucky.base_len, [9999, *PASSAGE[:4]])
    after_hits = probability(lucky.propose(LIMITS).tree, PASSAGE[4])
    after_misses = probability(unlucky.propose(LIMITS).tree, PASSAGE[4])

    assert after_hits > at_first
    assert after_misses < at_first


def test_a_batch_holds_what_each_session_would_say() -> None:
    drafter = NgramDrafter(NgramOptions())
    drafter.warm_up()
    first = drafter.open(SessionSpec([*PASSAGE, *PASSAGE[:10]]))
    second = drafter.open(SessionSpec([1, 2, 3] * 5))

    drafts = drafter.propose_batch([DraftJob(first, LIMITS), DraftJob(second, LIMITS)])

    assert list(drafts) == [first.propose(LIMITS), second.propose(LIMITS)]
    first.close()
    second.close()
