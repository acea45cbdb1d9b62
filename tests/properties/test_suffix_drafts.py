"""Laws of suffix drafts, for any text, any commits, any limits and any tenants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafter import DraftLimits, SessionSpec
from draft_service.suffix import SuffixDrafter, SuffixOptions
from draft_service.suffix_session import SuffixSession, Workspace
from paceline.tree import TokenTree
from tests.doubles.token_trees import paths_are_ordered, sibling_sums

pytestmark = pytest.mark.timeout(300)  # the first test may compile

TOKENS = st.integers(min_value=0, max_value=6)
TEXTS = st.lists(TOKENS, max_size=150)
COMMITS = st.lists(st.lists(TOKENS, min_size=1, max_size=6), max_size=12)
LIMITS = st.builds(
    DraftLimits,
    max_draft_tokens=st.integers(min_value=1, max_value=64),
    max_tree_depth=st.integers(min_value=0, max_value=64),
)
LARGEST = DraftLimits(max_draft_tokens=64, max_tree_depth=64)
TURNS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", ""]), st.lists(TOKENS, min_size=8, max_size=60)),
    min_size=1,
    max_size=10,
)
WORKSPACE = Workspace()


@given(prompt=TEXTS, predicted=TEXTS, commits=COMMITS, limits=LIMITS)
def test_every_tree_is_legal_keeps_its_limits_and_sums_to_at_most_one(
    prompt: list[int], predicted: list[int], commits: list[list[int]], limits: DraftLimits
) -> None:
    """B040: no proposal is larger or deeper than allowed."""
    session = SuffixSession(SessionSpec(prompt, predicted), WORKSPACE)
    committed = list(prompt)

    for token_ids in [[], *commits]:
        session.commit(len(committed), token_ids)
        committed += token_ids
        draft = session.propose(limits)
        checked = TokenTree(draft.tree.token_ids, draft.tree.parents, draft.tree.log_probs)

        assert draft.base_len == len(committed)
        checked.check_limits(
            max_nodes=limits.max_draft_tokens, max_depth=limits.max_tree_depth, vocab_size=7
        )
        assert all(total <= 1 + 1e-9 for total in sibling_sums(checked).values())
        assert paths_are_ordered(checked)


@given(prompt=TEXTS, predicted=TEXTS, commits=COMMITS)
def test_tokens_come_from_the_session_alone(
    prompt: list[int], predicted: list[int], commits: list[list[int]]
) -> None:
    """Text of other sessions never shows, and neither does the separator of the sources."""
    other = SuffixSession(SessionSpec([8, 9] * 50), WORKSPACE)
    session = SuffixSession(SessionSpec(prompt, predicted), WORKSPACE)
    known = {*prompt, *predicted}

    for token_ids in commits:
        other.commit(0, [8, 9])
        other.propose(LARGEST)
        session.commit(0, token_ids)
        known |= set(token_ids)

        assert set(session.propose(LARGEST).tree.token_ids) <= known


@given(turns=TURNS, max_tenants=st.integers(min_value=1, max_value=3))
def test_drafts_of_a_tenant_hold_only_tokens_of_its_own_texts(
    turns: list[tuple[str, list[int]]], max_tenants: int
) -> None:
    """Each tenant speaks with tokens of its own, in contexts that all share."""
    drafter = SuffixDrafter(SuffixOptions(corpus_tokens=200, corpus_tenants=max_tenants))
    shared = [90, 91, 92]
    own = {tenant: 10 * number for number, tenant in enumerate(["a", "b", "c", ""])}

    for tenant, token_ids in turns:
        text = [own[tenant] + token_id for token_id in token_ids]
        session = drafter.open(SessionSpec(shared, tenant=tenant))
        session.propose(LARGEST)
        session.commit(3, [*text, *shared, *text[:2]])
        tree = session.propose(LARGEST).tree
        session.close()
        session = drafter.open(SessionSpec([*text, *shared], tenant=tenant))
        allowed = {*shared, *range(own[tenant], own[tenant] + 7)}

        assert set(tree.token_ids) <= allowed
        assert set(session.propose(LARGEST).tree.token_ids) <= allowed
        session.close()


@given(turns=TURNS)
def test_a_session_without_a_tenant_gets_nothing_from_others(
    turns: list[tuple[str, list[int]]],
) -> None:
    drafter = SuffixDrafter(SuffixOptions(corpus_tokens=10_000))
    alone = SuffixDrafter(SuffixOptions(corpus_tokens=0))

    for tenant, token_ids in turns:
        session = drafter.open(SessionSpec([1, 2], tenant=tenant))
        session.commit(2, token_ids)
        session.close()
    nameless = drafter.open(SessionSpec([1, 2, 3, 1, 2]))
    isolated = alone.open(SessionSpec([1, 2, 3, 1, 2], tenant="a"))

    assert nameless.propose(LARGEST) == isolated.propose(LARGEST)


@given(prompt=TEXTS, commits=COMMITS, limits=LIMITS)
def test_the_same_commits_give_the_same_trees(
    prompt: list[int], commits: list[list[int]], limits: DraftLimits
) -> None:
    first = SuffixSession(SessionSpec(prompt), WORKSPACE)
    second = SuffixSession(SessionSpec(prompt), Workspace())

    for token_ids in [[], *commits]:
        first.commit(0, token_ids)
        second.commit(0, token_ids)

        draft = first.propose(limits)
        assert second.propose(limits) == draft
        assert first.propose(limits) == draft
