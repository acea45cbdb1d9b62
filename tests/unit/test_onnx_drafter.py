"""The ONNX drafter on a real, tiny model: what it reads, keeps, forgets and proposes."""

from __future__ import annotations

import threading
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto

from bench.onnx_drafter import BLOCK_SIZE, MAX_BLOCKS, generated
from draft_service.drafter import Draft, DraftJob, DraftLimits, DraftSession, SessionSpec
from draft_service.onnx_drafter import OnnxDrafter
from draft_service.onnx_session import OnnxOptions
from paceline.tree import ROOT, TokenTree
from tests.doubles.exported_models import TINY, exported_tiny_model, tiny_drafter, usual_tiny_model
from verify_service.targets.torch_model import TorchTarget

CYCLE = list(range(100, 140))
PROMPT = CYCLE * 3 + CYCLE[:10]
OPENING = tuple(PROMPT[:50])
FREE_OPENING = (1, 264, 291)
"""What follows this is less sure than how the passage goes on."""
LIMITS = DraftLimits(max_draft_tokens=24, max_tree_depth=5)
SEED = 41


def grown(session: DraftSession, limits: DraftLimits = LIMITS) -> Draft:
    """Return a session's draft once it grows no more."""
    for _ in range(100):
        draft = session.propose(limits)
        if not draft.may_grow:
            return draft
    raise AssertionError("the draft grows without end")


def greedy_path(tree: TokenTree) -> list[int]:
    """Return the tokens of the first children from the root down."""
    tokens: list[int] = []
    node = ROOT
    while node in tree.parents:
        node = tree.parents.index(node) + 1
        tokens.append(tree.token_ids[node - 1])
    return tokens


@cache
def target_text(temperature: float, opening: tuple[int, ...] = OPENING) -> tuple[int, ...]:
    """Return an opening and 60 tokens that the model itself says as a verifier's target."""
    target = TorchTarget.load(TINY, num_threads=1)
    target.allocate_kv(MAX_BLOCKS, BLOCK_SIZE)
    return tuple(generated(target, opening, temperature, seed=SEED, num_tokens=60))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_targets_own_model_drafts_every_token_of_it(temperature: float) -> None:
    """B051, B055: with equal weights and the shared noise all first choices are accepted."""
    text = target_text(temperature)
    session = tiny_drafter().open(SessionSpec(text[:50], seed=SEED, temperature=temperature))
    base_len, num_firsts, num_tokens = 50, 0, 0
    while base_len + LIMITS.max_tree_depth < len(text):
        draft = grown(session)
        path = greedy_path(draft.tree)
        num_firsts += TokenTree.chain(path).num_held(text[base_len:])
        num_tokens += len(path)
        session.commit(base_len, text[base_len : base_len + len(path) + 1])
        base_len += len(path) + 1

    assert num_tokens > 20
    assert num_firsts == num_tokens


def test_without_the_noise_a_sampled_text_is_rarely_foreseen() -> None:
    text = target_text(1.0, FREE_OPENING)
    drafter = tiny_drafter()
    shares = []
    for temperature in (0.0, 1.0):
        session = drafter.open(SessionSpec(text[:3], seed=SEED, temperature=temperature))
        hits = 0
        for position in range(3, 53):
            tree = session.propose(DraftLimits(1, 1)).tree
            hits += tree.token_ids == (text[position],)
            session.commit(position, [text[position]])
        shares.append(hits / 50)

    assert shares[1] == 1.0
    assert shares[0] < 0.8


@pytest.mark.parametrize("num_accepted", [0, 1, 3, 5])
def test_keeping_and_dropping_branches_leaves_what_a_fresh_session_would_say(
    num_accepted: int,
) -> None:
    """B051, B055, B066: the drafter's own cache is rewound to what was committed."""
    drafter = tiny_drafter()
    session = drafter.open(SessionSpec(PROMPT[:60], temperature=1.0, seed=5))
    committed = list(PROMPT[:60])
    for step in range(4):
        path = greedy_path(grown(session).tree)
        fresh = [*path[:num_accepted], 7 + step]
        session.commit(len(committed), fresh)
        committed += fresh
    other = drafter.open(SessionSpec(committed, temperature=1.0, seed=5))

    ours, anew = greedy_path(grown(session).tree), greedy_path(grown(other).tree)

    # How far it dares to look ahead a session has learned; what it expects there it has not.
    common = min(len(ours), len(anew))
    assert common > 0
    assert ours[:common] == anew[:common]


def test_a_tree_that_outlived_a_commit_is_sent_before_anything_is_read() -> None:
    session = tiny_drafter().open(SessionSpec(PROMPT))
    path = greedy_path(grown(session).tree)
    session.commit(len(PROMPT), path[:2])

    draft = session.propose(LIMITS)

    assert draft.base_len == len(PROMPT) + 2
    assert draft.may_grow
    assert greedy_path(draft.tree) == path[2:]


def test_each_call_reads_one_pass_and_deepens_the_tree() -> None:
    session = tiny_drafter().open(SessionSpec(PROMPT))

    depths = [max(session.propose(LIMITS).tree.depths()) for _ in range(4)]

    assert depths == [1, 2, 3, 4]


def test_sessions_of_different_lengths_share_passes_without_effect_on_each_other() -> None:
    """B048, B062, B066: padding of a batch is never read."""
    drafter = tiny_drafter()
    rng = np.random.default_rng(3)
    texts = [rng.integers(3, 1024, size).tolist() for size in (3, 40, 171, 8)]
    specs = [SessionSpec(text, temperature=1.0, seed=index) for index, text in enumerate(texts)]
    alone = [grown(drafter.open(spec)).tree for spec in specs]
    together = [drafter.open(spec) for spec in specs]

    for _ in range(30):
        drafts = drafter.propose_batch([DraftJob(each, LIMITS) for each in together])

    assert [draft.tree for draft in drafts] == alone


def test_a_prompt_is_read_in_chunks_beside_sessions_that_draft() -> None:
    """B077: one long prompt holds up nobody longer than a chunk takes."""
    drafter = tiny_drafter(options=OnnxOptions(chunk_tokens=16))
    quick = drafter.open(SessionSpec(PROMPT[:5]))
    slow = [drafter.open(SessionSpec(PROMPT)) for _ in range(2)]
    jobs = [DraftJob(each, LIMITS) for each in (quick, *slow)]

    drafts = drafter.propose_batch(jobs)
    rounds = 1
    while not all(draft.tree.num_nodes for draft in drafts):
        assert all(draft.may_grow for draft in drafts if not draft.tree.num_nodes)
        assert drafts[0].tree.num_nodes
        drafts = drafter.propose_batch(jobs)
        rounds += 1

    assert rounds == 2 * -(-len(PROMPT) // 16) - 1


def test_a_full_memory_forgets_the_session_that_was_unused_longest() -> None:
    drafter = tiny_drafter(options=OnnxOptions(chunk_tokens=256, max_kv_tokens=500))
    sessions = [drafter.open(SessionSpec(PROMPT)) for _ in range(4)]
    trees = [grown(session).tree for session in sessions]

    held = [session.kv is not None for session in sessions]  # type: ignore[attr-defined]
    again = grown(sessions[0]).tree

    assert held == [False, False, True, True]
    assert again == trees[0]


def test_sessions_beyond_the_memory_say_so_and_end() -> None:
    """B071: what cannot be held is drafted without, not waited for."""
    drafter = tiny_drafter(options=OnnxOptions(chunk_tokens=256, max_kv_tokens=200))
    jobs = [DraftJob(drafter.open(SessionSpec(PROMPT)), LIMITS) for _ in range(2)]

    first, second = drafter.propose_batch(jobs)

    assert first.tree.num_nodes
    assert second == Draft(len(PROMPT), TokenTree(), may_grow=False)


def test_memory_of_sessions_that_are_gone_is_free() -> None:
    drafter = tiny_drafter(options=OnnxOptions(chunk_tokens=256, max_kv_tokens=256))
    for _ in range(5):
        session = drafter.open(SessionSpec(PROMPT))
        assert grown(session).tree.num_nodes
        session.close()
        del session


def test_a_context_longer_than_allowed_is_cut_and_drafting_goes_on() -> None:
    """B105, B111, B112: nothing is read beyond the limit, and nobody fails at it."""
    drafter = tiny_drafter(options=OnnxOptions(chunk_tokens=256, max_context_tokens=64))
    session = drafter.open(SessionSpec(PROMPT))
    committed = list(PROMPT)
    for _ in range(30):
        draft = grown(session)
        assert draft.tree.num_nodes
        assert session._context_slots.__len__() <= 64  # type: ignore[attr-defined]
        fresh = [*greedy_path(draft.tree)[:3], 140 + len(committed) % 7]
        session.commit(len(committed), fresh)
        committed += fresh

    assert grown(session).base_len == len(committed)


def test_commits_and_closes_during_a_pass_only_take_note() -> None:
    drafter = tiny_drafter()
    session = drafter.open(SessionSpec(PROMPT))
    stop = threading.Event()
    failures: list[Exception] = []

    def keep_proposing() -> None:
        try:
            while not stop.is_set():
                drafter.propose_batch([DraftJob(session, LIMITS)])
        except Exception as error:  # whatever it is, the test fails with it
            failures.append(error)

    thread = threading.Thread(target=keep_proposing)
    thread.start()
    for index in range(200):
        session.commit(len(PROMPT) + index, [CYCLE[(10 + index) % 40]])
    session.close()
    stop.set()
    thread.join()

    assert not failures
    assert session.propose(LIMITS).tree == TokenTree()


def test_tokens_that_the_model_does_not_know_are_read_as_something() -> None:
    """B079, B114: a target may know more tokens than the drafter."""
    session = tiny_drafter().open(SessionSpec([5000, *PROMPT, 4000]))

    assert grown(session).tree.num_nodes


def test_a_session_without_tokens_proposes_nothing_and_waits() -> None:
    session = tiny_drafter().open(SessionSpec([]))

    assert session.propose(LIMITS) == Draft(0, TokenTree(), may_grow=False)
    session.commit(0, PROMPT)
    assert grown(session).tree.num_nodes


def test_a_trimmed_head_proposes_its_own_tokens_under_their_true_ids() -> None:
    drafter = tiny_drafter(exported_tiny_model("float32", 512))
    head = set(drafter._tokens.head_token_ids.tolist())
    rng = np.random.default_rng(1)
    session = drafter.open(SessionSpec(rng.integers(3, 1024, 80).tolist(), temperature=1.5))

    tree = grown(session).tree

    assert len(head) == 512
    assert tree.num_nodes > 5
    assert set(tree.token_ids) <= head
    assert max(head) >= 512


@pytest.mark.parametrize(
    ("kv_type", "padded_rows"),
    [(TensorProto.FLOAT, 0), (TensorProto.FLOAT16, 0), (TensorProto.FLOAT, 9)],
    ids=["float32", "float16 past", "padded vocabulary"],
)
def test_a_decoder_of_the_usual_signature_drafts_the_same(kv_type: int, padded_rows: int) -> None:
    """B114: rows of the logits that stand for no token are never proposed."""
    usual = tiny_drafter(usual_tiny_model(kv_type, padded_rows))
    own = tiny_drafter()
    for prompt in (PROMPT, PROMPT[:33]):
        theirs, ours = usual.open(SessionSpec(prompt)), own.open(SessionSpec(prompt))

        assert greedy_path(grown(theirs).tree) == greedy_path(grown(ours).tree)
        for session in (theirs, ours):
            session.commit(len(prompt), [7, 8, 9])
        assert greedy_path(grown(theirs).tree) == greedy_path(grown(ours).tree)
    assert usual.info.tokenizer_fingerprint == own.info.tokenizer_fingerprint


def test_estimates_are_honest_on_the_targets_own_sampled_text() -> None:
    """What is said to be likely happens about as often as that."""
    text = target_text(1.0, FREE_OPENING)
    drafter: OnnxDrafter = tiny_drafter(exported_tiny_model("int4"))
    session = drafter.open(SessionSpec(text[:3], seed=SEED, temperature=1.0))
    stated, hits = 0.0, 0
    for position in range(3, len(text)):
        tree = session.propose(DraftLimits(1, 1)).tree
        stated += float(np.exp(tree.log_probs[0]))
        hits += tree.token_ids == (text[position],)
        session.commit(position, [text[position]])

    assert abs(stated - hits) < 12


def test_parents_are_likelier_than_their_children() -> None:
    session = tiny_drafter().open(SessionSpec(PROMPT[:20], temperature=1.2, seed=3))

    tree = grown(session).tree

    totals = [0.0]
    for parent, log_prob in zip(tree.parents, tree.log_probs, strict=True):
        totals.append(totals[parent] + log_prob)
    assert all(earlier >= later for earlier, later in pairwise(totals))


def test_a_broken_session_leaves_nothing_in_the_memory_of_later_batches() -> None:
    """B048, B057: memory is kept between passes, and what one session left no other one reads."""
    drafter = tiny_drafter()
    texts = [PROMPT, [3, 4, 5], PROMPT * 2]
    alone = grown(drafter.open(SessionSpec(texts[1]))).tree
    broken, short, long = (drafter.open(SessionSpec(text)) for text in texts)
    grown(broken)
    for tensor in broken.kv.tensors:  # type: ignore[attr-defined]
        tensor[:] = np.nan
    broken.commit(len(PROMPT), [7])
    long.propose(LIMITS)
    drafter.propose_batch([DraftJob(each, LIMITS) for each in (broken, long)])

    long.commit(len(texts[2]), [7])
    for _ in range(10):
        drafts = drafter.propose_batch([DraftJob(each, LIMITS) for each in (short, long)])

    assert drafts[0].tree == alone
