"""Laws of n-gram drafts, for any text, any commits and any limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafter import DraftLimits, SessionSpec
from draft_service.ngram import NgramOptions, NgramSession
from tests.doubles.token_trees import paths_are_ordered, sibling_sums

TOKENS = st.integers(min_value=0, max_value=6)
TEXTS = st.lists(TOKENS, max_size=150)
COMMITS = st.lists(st.lists(TOKENS, min_size=1, max_size=6), max_size=12)
LIMITS = st.builds(
    DraftLimits,
    max_draft_tokens=st.integers(min_value=1, max_value=64),
    max_tree_depth=st.integers(min_value=0, max_value=64),
)


@given(prompt=TEXTS, predicted=TEXTS, commits=COMMITS, limits=LIMITS)
def test_every_tree_keeps_its_limits_and_sums_to_at_most_one(
    prompt: list[int], predicted: list[int], commits: list[list[int]], limits: DraftLimits
) -> None:
    """B040: no proposal is larger or deeper than allowed."""
    session = NgramSession(SessionSpec(prompt, predicted), NgramOptions())
    committed = list(prompt)

    for token_ids in [[], *commits]:
        session.commit(len(committed), token_ids)
        committed += token_ids
        draft = session.propose(limits)

        assert draft.base_len == len(committed)
        draft.tree.check_limits(
            max_nodes=limits.max_draft_tokens, max_depth=limits.max_tree_depth, vocab_size=7
        )
        assert all(total <= 1 + 1e-9 for total in sibling_sums(draft.tree).values())
        assert paths_are_ordered(draft.tree)


@given(prompt=TEXTS, predicted=TEXTS, commits=COMMITS)
def test_tokens_come_from_the_session_alone(
    prompt: list[int], predicted: list[int], commits: list[list[int]]
) -> None:
    """Text of other sessions never shows, and neither does the separator of the sources."""
    limits = DraftLimits(max_draft_tokens=64, max_tree_depth=64)
    other = NgramSession(SessionSpec([8, 9] * 50), NgramOptions())
    session = NgramSession(SessionSpec(prompt, predicted), NgramOptions())
    known = {*prompt, *predicted}

    for token_ids in commits:
        other.commit(other.base_len, [8, 9])
        other.propose(limits)
        session.commit(session.base_len, token_ids)
        known |= set(token_ids)

        assert set(session.propose(limits).tree.token_ids) <= known


@given(prompt=TEXTS, commits=COMMITS, limits=LIMITS)
def test_the_same_commits_give_the_same_trees(
    prompt: list[int], commits: list[list[int]], limits: DraftLimits
) -> None:
    first = NgramSession(SessionSpec(prompt), NgramOptions())
    second = NgramSession(SessionSpec(prompt), NgramOptions())

    for token_ids in [[], *commits]:
        first.commit(first.base_len, token_ids)
        second.commit(second.base_len, token_ids)

        draft = first.propose(limits)
        assert second.propose(limits) == draft
        assert first.propose(limits) == draft
