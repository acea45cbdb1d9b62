"""What the suffix drafter proposes, learns and keeps."""

from __future__ import annotations

import pytest

from draft_service.drafter import DraftJob, SessionSpec
from draft_service.suffix import SuffixDrafter, SuffixOptions
from draft_service.suffix_corpus import INGESTED_AT_ONCE, Corpus, TenantCorpora
from draft_service.suffix_session import SuffixSession
from paceline.tree import TokenTree
from tests.doubles.suffix_sessions import LIMITS, WORKSPACE, probability, session_over

pytestmark = pytest.mark.timeout(300)  # the first test may compile

PASSAGE = list(range(100, 160))


def test_a_text_without_repetition_gets_an_empty_tree() -> None:
    assert session_over(PASSAGE).propose(LIMITS).tree == TokenTree()


def test_an_empty_session_gets_an_empty_tree() -> None:
    """B043: nothing is needed for a session to be legal."""
    assert session_over([]).propose(LIMITS).tree == TokenTree()


def test_a_copied_passage_is_proposed_to_its_end() -> None:
    draft = session_over([*PASSAGE, 7, *PASSAGE[:10]]).propose(LIMITS)

    assert draft.tree.num_held(PASSAGE[10:]) >= 32


def test_different_continuations_become_siblings_the_more_frequent_one_likelier() -> None:
    tree = session_over([1, 2, 50, 7, 1, 2, 50, 8, 1, 2, 60, 9, 1, 2]).propose(LIMITS).tree

    assert probability(tree, 50) > 0
    assert probability(tree, 60) > 0
    assert probability(tree, 50) + probability(tree, 60) > 0.4


def test_the_longest_match_is_the_likeliest() -> None:
    tree = session_over([1, 2, 3, 4, 50, 9, 4, 60, 8, 4, 60, 1, 2, 3, 4]).propose(LIMITS).tree

    assert probability(tree, 50) > probability(tree, 60)


def test_all_occurrences_count_however_many_came_since() -> None:
    """B101: nothing is left out, and the cost does not grow."""
    often = [1, 2, 50] * 30 + [token_id for i in range(7) for token_id in (1, 2, 200 + i)]

    tree = session_over([*often, 9, 1, 2]).propose(LIMITS).tree

    assert probability(tree, 50) > 0.2


def test_more_occurrences_that_agree_claim_more() -> None:
    once = session_over([1, 2, 50, 3, 1, 2]).propose(LIMITS).tree
    often = session_over([1, 2, 50, 3, 1, 2, 50, 4, 1, 2, 50, 5, 1, 2]).propose(LIMITS).tree

    assert probability(often, 50) > probability(once, 50) + 0.1


def test_a_repetition_goes_on_beyond_the_end_of_the_text() -> None:
    tree = session_over([5, 6, 7] * 10).propose(LIMITS).tree

    assert tree.num_held([5, 6, 7] * 10) >= 24


def test_the_predicted_output_is_proposed_from_the_first_token() -> None:
    tree = session_over([1, 2, 3], predicted=PASSAGE).propose(LIMITS).tree

    assert tree.num_held(PASSAGE) >= 8
    assert probability(tree, PASSAGE[0]) > 0.3


def test_a_copy_goes_on_after_a_replaced_token() -> None:
    session = session_over([*PASSAGE, *PASSAGE[:20]])
    session.propose(LIMITS)

    session.commit(80, [9999])

    assert probability(session.propose(LIMITS).tree, PASSAGE[21]) > 0


def test_a_copy_goes_on_after_an_inserted_token() -> None:
    session = session_over([*PASSAGE, *PASSAGE[:20]])
    session.propose(LIMITS)

    session.commit(80, [9999])

    assert probability(session.propose(LIMITS).tree, PASSAGE[20]) > 0


def test_predicted_output_and_an_empty_prompt_stay_two_texts() -> None:
    session = session_over([], predicted=PASSAGE[:8])

    session.commit(0, [7, 8, 9])
    session.commit(3, PASSAGE[5:8])

    assert probability(session.propose(LIMITS).tree, 7) == 0


def test_a_copy_stays_in_its_passage_where_the_words_also_occur_elsewhere() -> None:
    """After the difference the nearer of two continuations of the same tokens is meant."""
    first = [*PASSAGE[:30], 1, 2, 3, *PASSAGE[30:]]
    second = [300, 301, 1, 2, 3, 400, 401]
    session = session_over([*first, *second, *PASSAGE[:30]])

    session.commit(0, [77, 2, 3])

    tree = session.propose(LIMITS).tree
    assert probability(tree, PASSAGE[30]) > probability(tree, 400)


def test_a_session_learns_from_hits_and_from_misses() -> None:
    lucky = session_over([*PASSAGE, *PASSAGE[:4]])
    unlucky = session_over([*PASSAGE, *PASSAGE[:4]])
    at_first = probability(lucky.propose(LIMITS).tree, PASSAGE[4])
    for step in range(8):
        start = 4 + 3 * step
        lucky.propose(LIMITS)
        lucky.commit(0, PASSAGE[start : start + 3])
        unlucky.propose(LIMITS)
        unlucky.commit(0, [9000 + step, *PASSAGE[:4]])

    lucky.commit(0, [9999, *PASSAGE[:4]])
    after_hits = probability(lucky.propose(LIMITS).tree, PASSAGE[4])
    after_misses = probability(unlucky.propose(LIMITS).tree, PASSAGE[4])

    assert after_hits > at_first
    assert after_misses < at_first


def test_a_batch_holds_what_each_session_would_say() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    drafter.warm_up()
    first = drafter.open(SessionSpec([*PASSAGE, *PASSAGE[:10]]))
    second = drafter.open(SessionSpec([1, 2, 3] * 5))

    drafts = drafter.propose_batch([DraftJob(first, LIMITS), DraftJob(second, LIMITS)])

    assert list(drafts) == [first.propose(LIMITS), second.propose(LIMITS)]
    first.close()
    second.close()


def test_warming_up_leaves_nothing_in_any_corpus() -> None:
    drafter = SuffixDrafter(SuffixOptions())

    drafter.warm_up()

    session = drafter.open(SessionSpec([1, 2, 3, 1, 2], tenant="warm-up"))
    assert set(session.propose(LIMITS).tree.token_ids) <= {1, 2, 3}


def test_a_long_prompt_is_taken_in_by_several_calls() -> None:
    """B110: no session waits for another one's prompt."""
    prompt = [(position * position) % 50_021 for position in range(3 * INGESTED_AT_ONCE)]
    session = session_over([*prompt, *PASSAGE, *PASSAGE[:20]])

    drafts = [session.propose(LIMITS)]
    session.commit(len(prompt) + 80, PASSAGE[20:24])
    while drafts[-1].may_grow:
        drafts.append(session.propose(LIMITS))

    assert len(drafts) == 3
    assert all(draft.tree == TokenTree() for draft in drafts[:-1])
    assert drafts[-1].base_len == len(prompt) + 84
    assert drafts[-1].tree.num_held(PASSAGE[24:]) >= 8


def test_a_session_of_8k_tokens_takes_less_than_a_megabyte() -> None:
    """A thousand of them fit in a gigabyte."""
    session = session_over([(position * position) % 5_003 for position in range(8_000)])

    assert session.num_bytes < 950_000


def test_an_earlier_output_of_the_tenant_is_drafted() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    earlier = drafter.open(SessionSpec([1, 2, 3], prompt_len=3, tenant="a"))
    earlier.commit(3, PASSAGE)
    earlier.close()

    session = drafter.open(SessionSpec([4, 5, *PASSAGE[:6]], prompt_len=8, tenant="a"))

    assert session.propose(LIMITS).tree.num_held(PASSAGE[6:]) >= 6
    session.commit(8, [9, *PASSAGE[20:25]])
    assert session.propose(LIMITS).tree.num_held(PASSAGE[25:]) >= 6


def test_a_prompt_is_not_an_output() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    earlier = drafter.open(SessionSpec(PASSAGE, prompt_len=len(PASSAGE), tenant="a"))
    earlier.commit(60, [7] * 20)
    earlier.close()

    session = drafter.open(SessionSpec(PASSAGE[:10], tenant="a"))

    assert session.propose(LIMITS).tree == TokenTree()


@pytest.mark.parametrize("tenant", ["b", "", "A", "a "])
def test_another_name_reaches_nothing(tenant: str) -> None:
    drafter = SuffixDrafter(SuffixOptions())
    earlier = drafter.open(SessionSpec([1, 2, 3], tenant="a"))
    earlier.commit(3, PASSAGE)
    earlier.close()

    session = drafter.open(SessionSpec(PASSAGE[:6], tenant=tenant))

    assert session.propose(LIMITS).tree == TokenTree()


def test_a_corpus_is_bounded_and_forgets_the_oldest_outputs() -> None:
    corpora = TenantCorpora(max_tenants=2, max_tokens=4_000)
    corpus = corpora.of("a")
    assert corpus is not None
    for number in range(50):
        session = SuffixSession(SessionSpec([1]), WORKSPACE, corpus)
        session.commit(1, [1_000 * number + token_id for token_id in range(200)])
        session.close()

    def drafted(number: int) -> bool:
        session = SuffixSession(SessionSpec([1_000 * number + 5]), WORKSPACE, corpus)
        return bool(session.propose(LIMITS).tree.token_ids)

    assert len(corpus) <= 4_000
    assert corpus.num_bytes < 400_000
    assert drafted(49)
    assert not drafted(0)


def test_the_tenant_that_was_active_longest_ago_makes_room() -> None:
    corpora = TenantCorpora(max_tenants=2, max_tokens=1_000)
    evicted, kept = corpora.of("a"), corpora.of("b")
    assert evicted is not None
    assert kept is not None
    session = SuffixSession(SessionSpec([1, 2]), WORKSPACE, evicted)
    session.commit(2, PASSAGE)
    corpora.of("b")

    corpora.of("c")
    session.close()

    assert len(corpora) == 2
    assert corpora.of("b") is kept
    assert len(evicted) == 0
    assert corpora.of("a") is not evicted


def test_a_session_goes_on_while_its_corpus_is_evicted() -> None:
    corpora = TenantCorpora(max_tenants=1, max_tokens=1_000)
    corpus = corpora.of("a")
    assert corpus is not None
    first = SuffixSession(SessionSpec([1, 2]), WORKSPACE, corpus)
    first.commit(2, PASSAGE)
    first.close()
    session = SuffixSession(SessionSpec(PASSAGE[:9]), WORKSPACE, corpus)
    assert session.propose(LIMITS).tree.num_nodes > 0

    corpora.of("b")

    session.commit(9, PASSAGE[9:11])
    assert session.propose(LIMITS).tree == TokenTree()


def test_commits_go_on_while_other_sessions_turn_the_generations_of_the_corpus() -> None:
    """What was found in a generation is not looked for in the smaller one that replaces it."""
    corpus = Corpus(max_tokens=20_000)
    long = SuffixSession(SessionSpec([1]), WORKSPACE, corpus)
    long.commit(1, list(range(1_000, 9_000)))
    long.close()
    session = SuffixSession(SessionSpec(list(range(8_000, 8_950))), WORKSPACE, corpus)
    assert session.propose(LIMITS).tree.num_nodes > 0

    for number in range(3):
        other = SuffixSession(SessionSpec([1]), WORKSPACE, corpus)
        other.commit(1, [*range(20_000 + number, 28_000 + number), *PASSAGE])
        other.close()
        session.commit(950, PASSAGE[:4])
        session.commit(954, [8_950 + number])
    session.commit(960, PASSAGE[:6])

    assert corpus.num_turns >= 2
    assert session.propose(LIMITS).tree.num_held(PASSAGE[6:]) >= 6


def test_long_outputs_are_indexed_in_parts_and_cut_to_the_corpus() -> None:
    corpus = Corpus(max_tokens=40_000)
    session = SuffixSession(SessionSpec([1]), WORKSPACE, corpus)
    session.commit(1, list(range(30_000)))

    session.close()
    after_close = len(corpus)
    while len(corpus) < 20_000:
        corpus.ingest()

    assert 0 < after_close < 10_000
    assert len(corpus) < 20_010


def test_tenants_can_be_kept_without_a_corpus() -> None:
    assert TenantCorpora(max_tenants=4, max_tokens=0).of("a") is None
