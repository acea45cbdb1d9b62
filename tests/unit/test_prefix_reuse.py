"""Prefix caching beside drafting: what is reused is right, is as much, and starves no drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from paceline.tree import TokenTree
from tests.doubles.engine_harness import Emitted, Harness, ProposeTree
from tests.doubles.small_engine import MARKOV, VOCAB, guesses, ids, request, run, small_engine
from verify_service.engine.sampling import SamplingParams
from verify_service.engine.step_engine import StepEngine

BLOCK = 4
SHARED = tuple(index * 7 % VOCAB for index in range(40))


def _self_draft(committed: Sequence[int]) -> TokenTree:
    """Propose the three tokens that the greedy target says next."""
    tokens = list(committed)
    for _ in range(3):
        row = MARKOV(tuple(tokens))
        tokens.append(max(range(VOCAB), key=row.__getitem__))
    return TokenTree.chain(tokens[len(committed) :])


def _engine() -> StepEngine:
    return small_engine(num_blocks=128, context_length=256)


def _acceptance(emitted: Emitted) -> float:
    steps = [step for step in emitted.steps if step.num_drafted]
    return sum(step.num_accepted for step in steps) / sum(step.num_drafted for step in steps)


def test_a_cached_prefix_starves_no_drafter() -> None:
    """B052: the second request with a prefix is drafted for like the first."""
    engine = _engine()
    first = run([request(1, prompt_token_ids=(*SHARED, 1))], engine, _self_draft)[1]

    second = run([request(2, prompt_token_ids=(*SHARED, 2))], engine, _self_draft)[2]

    assert second.steps[0].num_cached_prompt_tokens >= len(SHARED)
    assert first.steps[0].num_cached_prompt_tokens == 0
    assert _acceptance(first) == _acceptance(second) == 1.0


@pytest.mark.parametrize("max_tokens", range(1, 2 * BLOCK + 2))
def test_only_committed_tokens_are_reused(max_tokens: int) -> None:
    """B053: rounds with rejections that end before, at and after a block's edge."""
    engine = _engine()
    first = run([request(1, max_tokens=max_tokens)], engine, guesses)[1]
    prompt = (*request(1).prompt_token_ids, *first.token_ids)

    warm = run([request(2, prompt_token_ids=prompt)], engine, guesses)
    cold = run([request(2, prompt_token_ids=prompt)], _engine())

    assert ids(warm) == ids(cold)
    assert warm[2].steps[0].num_cached_prompt_tokens >= (len(prompt) - 1) // BLOCK * BLOCK - BLOCK


def _chats(propose: ProposeTree | None) -> int:
    """Return the prompt tokens found in the cache over eight chats of four turns."""
    engine, num_cached = _engine(), 0
    history = {chat: (*SHARED[:8], chat) for chat in range(8)}
    for turn in range(4):
        harness = Harness(engine, propose)
        for chat, tokens in history.items():
            asked = request(1 + turn * 8 + chat, max_tokens=7, prompt_token_ids=(*tokens, turn))
            harness.submit(asked)
        harness.run()
        for sequence_id, emitted in harness.emitted.items():
            chat = (sequence_id - 1) % 8
            num_cached += emitted.steps[0].num_cached_prompt_tokens
            history[chat] = (*history[chat], turn, *emitted.token_ids)
    return num_cached


def test_drafting_evicts_no_prompt_that_would_have_been_found() -> None:
    """B054: trees take blocks that nobody waits for, and give them back."""
    assert _chats(guesses) >= 0.95 * _chats(None) > 0


def test_acceptance_does_not_slide() -> None:
    """B060: many requests with a shared prefix: the last are drafted for like the first."""
    engine = _engine()
    rates = [
        _acceptance(run([request(n, prompt_token_ids=(*SHARED, n % 16))], engine, guesses)[n])
        for n in range(1, 161)
    ]

    assert rates[:16] == rates[-16:]
    engine.forget_cached_prefixes()
    again = run([request(999, prompt_token_ids=(*SHARED, 1))], engine, guesses)[999]
    assert _acceptance(again) == rates[0]


def test_sampled_requests_vary_and_greedy_ones_beside_them_do_not() -> None:
    """B020: 1.0 is not dropped on the way, nor does it rub off."""
    sampled = [
        request(n, prompt_token_ids=SHARED[:6], sampling=SamplingParams(temperature=1.0, seed=n))
        for n in range(1, 61)
    ]
    greedy = [replace(each, sequence_id=100 + each.sequence_id, sampling=SamplingParams())
              for each in sampled[:20]]  # fmt: skip

    drafted = ids(run([*sampled, *greedy], small_engine(), guesses))
    plain = ids(run([*sampled, *greedy], small_engine()))

    assert drafted == plain
    assert len({tuple(drafted[each.sequence_id]) for each in sampled}) > 50
    assert len({tuple(drafted[each.sequence_id]) for each in greedy}) == 1
