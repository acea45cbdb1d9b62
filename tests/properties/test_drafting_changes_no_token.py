"""The headline property: with and without drafting, the same ids, for any tree and any seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.noise import mix64
from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Emitted, Harness, ProposeTree
from verify_service.engine import verification
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.row_choices import DrawnChoices
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets.table import TableTarget, markov_logits

VOCAB = 12


def _engine(*, block_size: int = 4, num_blocks: int = 64, max_prefill_rows: int = 5) -> StepEngine:
    target = TableTarget(
        lambda tokens: [*markov_logits(VOCAB, seed=3)(tokens), 99.0, 99.0],
        vocab_size=VOCAB + 2,
        num_token_ids=VOCAB,
        context_length=64,
    )
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_running=4,
        max_prefill_rows=max_prefill_rows,
        max_draft_tokens=12,
        budget=BudgetMode.FIXED,
        draft_pools=(POOL,),
    )
    return StepEngine(target, config)


def _random_tree(seed: int, num_nodes: int) -> TokenTree:
    token_ids: list[int] = []
    parents: list[int] = []
    taken: set[tuple[int, int]] = set()
    for node in range(num_nodes):
        parent = mix64(seed + 2 * node) % (node + 1)
        token_id = mix64(seed + 2 * node + 1) % VOCAB
        if (parent, token_id) not in taken:
            taken.add((parent, token_id))
            parents.append(min(parent, len(token_ids)))
            token_ids.append(token_id)
    return _without_twins(token_ids, parents)


def _without_twins(token_ids: list[int], parents: list[int]) -> TokenTree:
    seen: set[tuple[int, int]] = set()
    place = {0: 0}
    kept: list[tuple[int, int]] = []
    for node, (token_id, parent) in enumerate(zip(token_ids, parents, strict=True), start=1):
        if parent in place and (place[parent], token_id) not in seen:
            seen.add((place[parent], token_id))
            kept.append((token_id, place[parent]))
            place[node] = len(kept)
    return TokenTree(tuple(t for t, _ in kept), tuple(p for _, p in kept))


def _drafts(seed: int, oracle: Sequence[int], honesty: int) -> ProposeTree:
    """Mix the true continuation (``honesty`` of 10 times, cut at a random depth) with noise."""

    def propose(committed: Sequence[int]) -> TokenTree:
        state = mix64(seed + len(committed))
        tree = _random_tree(state, state % 9)
        if state % 10 < honesty:
            truth = tuple(oracle[len(committed) : len(committed) + 1 + state % 6])
            wrong = tuple((token_id + 1) % VOCAB for token_id in truth)
            siblings = TokenTree(
                tuple(t for pair in zip(wrong, truth, strict=True) for t in pair),
                tuple(p for depth in range(len(truth)) for p in (2 * depth, 2 * depth)),
            )
            return siblings if state % 2 else TokenTree.chain(truth)
        return tree

    return propose


def _run(
    requests: Sequence[Request], propose: ProposeTree | None, engine: StepEngine
) -> list[Emitted]:
    harness = Harness(engine, propose)
    for request in requests:
        harness.submit(request)
    harness.run()
    assert engine.blocks.num_in_use == 0
    return [harness.emitted[request.sequence_id] for request in requests]


sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    logit_bias=st.sampled_from([{}, {3: 2.0, 5: -100.0}]),
    seed=st.integers(0, 2**64 - 1),
)
limits = st.builds(
    TokenLimits,
    max_tokens=st.integers(1, 40),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    sampling=sampling_params,
    token_limits=limits,
    seed=st.integers(0, 2**32),
    honesty=st.integers(0, 10),
    num_logprobs=st.sampled_from([None, 0, 2]),
)
def test_one_sequence_emits_the_same_ids_with_any_drafter(
    prompt: list[int],
    sampling: SamplingParams,
    token_limits: TokenLimits,
    seed: int,
    honesty: int,
    num_logprobs: int | None,
) -> None:
    """B006, B011, B022-B026, B036-B041, B058, B059: options, stops and limits inside runs."""
    request = Request(
        1, tuple(prompt), sampling=sampling, limits=token_limits, num_logprobs=num_logprobs
    )

    (plain,) = _run([request], None, _engine())
    oracle = [*prompt, *plain.token_ids]
    (drafted,) = _run([request], _drafts(seed, oracle, honesty), _engine())

    assert drafted.token_ids == plain.token_ids
    assert drafted.finish_reason == plain.finish_reason
    assert drafted.logprobs == plain.logprobs
    assert all(token_id < VOCAB for token_id in drafted.token_ids)
    assert len(drafted.token_ids) == sum(
        step.num_accepted + 1 for step in drafted.steps if step.token_ids
    )


@settings(max_examples=80, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=3
    ),
    sampling=st.lists(sampling_params, min_size=3, max_size=3),
    token_limits=limits,
    seed=st.integers(0, 2**32),
    honesty=st.integers(0, 10),
)
def test_choices_at_once_and_late_bookkeeping_change_no_id(
    prompts: list[list[int]],
    sampling: list[SamplingParams],
    token_limits: TokenLimits,
    seed: int,
    honesty: int,
) -> None:
    """B006, B022-B026, B058: as on a device, where trees come in while a pass is under way."""
    requests = [
        Request(index, tuple(prompt), sampling=sampling[index], limits=token_limits)
        for index, prompt in enumerate(prompts)
    ]
    alone = [_run([request], None, _engine())[0] for request in requests]
    oracle = [*prompts[0], *alone[0].token_ids]
    engine = _engine()
    propose = _drafts(seed, oracle, honesty)
    harness = Harness(engine, propose)
    engine.beside = lambda: harness.offer_all() if honesty % 2 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "choose_all", DrawnChoices)
        patch.setattr(verification.Pass, "is_apart", True)
        for request in requests:
            harness.submit(request)
        harness.run()

    assert [harness.emitted[each.sequence_id].token_ids for each in requests] == [
        each.token_ids for each in alone
    ]
    engine.settle()
    engine.check_integrity()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=7),
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(12, 40),
    block_size=st.sampled_from([1, 3, 4]),
    max_prefill_rows=st.sampled_from([1, 4, 7]),
    temperature=st.sampled_from([0.0, 0.9]),
)
def test_batches_preemption_and_chunks_change_no_id(
    lengths: list[int],
    seed: int,
    num_blocks: int,
    block_size: int,
    max_prefill_rows: int,
    temperature: float,
) -> None:
    """B045-B049, B061-B067, B076: crowded cache, ragged trees, chunked prefill."""
    context = num_blocks * block_size
    requests = [
        Request(
            index,
            tuple(mix64(seed + index * 64 + i) % VOCAB for i in range(min(length, context - 2))),
            sampling=SamplingParams(temperature=temperature, seed=seed + index),
            limits=TokenLimits(max_tokens=max(1, min(24, context - min(length, context - 2)))),
        )
        for index, length in enumerate(lengths)
    ]

    alone = [_run([request], None, _engine())[0] for request in requests]
    crowded = _run(
        requests,
        lambda committed: _random_tree(mix64(seed + len(committed)), 8),
        _engine(num_blocks=num_blocks, block_size=block_size, max_prefill_rows=max_prefill_rows),
    )

    assert [each.token_ids for each in crowded] == [each.token_ids for each in alone]
