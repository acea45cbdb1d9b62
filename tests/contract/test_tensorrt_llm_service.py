"""
The verify service on the tensorrt-llm engine, over the fake package built from the recorded API.

What differs from the step engine is declared by ``GetModelInfo`` and tested here as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from paceline.v1 import draft_service_pb2, types_pb2, verify_service_pb2
from tests.doubles.fake_tensorrt_llm.modules import DRAFTERS
from tests.doubles.running_verifier import (
    POOL,
    Received,
    attached,
    eventually,
    running_drafter,
    start,
)
from tests.doubles.scripted_drafter import Propose, ScriptedDrafter, chain, oracle
from tests.doubles.tensorrt_verifier import (
    EOS,
    TensorRtVerifier,
    greedy,
    running_tensorrt_verifier,
)

PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 60


def expected(num_tokens: int = NUM_TOKENS) -> list[int]:
    return greedy(PROMPT, num_tokens)


async def drafted(verifier: TensorRtVerifier, max_tokens: int = NUM_TOKENS) -> Received:
    """Run one request once the pool is up and the worker is there."""
    await eventually(lambda: verifier.server.links[POOL].status.cause is None)
    async with attached(verifier.address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=max_tokens, pool=POOL))
        return await gateway.result(1)


@pytest.mark.asyncio
@pytest.mark.parametrize("family", sorted(DRAFTERS))
async def test_plain_output_is_the_targets(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path, family=family) as verifier,
        attached(verifier.address) as gateway,
    ):
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS))
        received = await gateway.result(1)

    assert received.token_ids == expected()
    assert received.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert received.results[0].is_prefill
    assert received.num_drafted == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("family", sorted(DRAFTERS))
async def test_a_good_drafter_shortens_the_run_and_changes_no_token(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drafter = ScriptedDrafter(propose=oracle(PROMPT + expected(), depth=12))
    async with (
        running_drafter(drafter) as address,
        running_tensorrt_verifier(
            monkeypatch, tmp_path, family=family, pools={POOL: address}
        ) as verifier,
    ):
        verifier.world.step_seconds = 0.02
        received = await drafted(verifier)
        executor = verifier.world.executors[0]

    assert received.token_ids == expected()
    assert received.num_accepted > NUM_TOKENS / 4
    assert received.num_accepted <= received.num_drafted
    assert len(received.results) < NUM_TOKENS
    assert sum(len(tokens) for _, tokens in executor.chains) == received.num_drafted


def lying(session_id: int, committed: list[int]) -> Iterable[draft_service_pb2.Proposal]:
    wrong = [(committed[-1] + 1 + index) % EOS for index in range(20)]
    return [chain(session_id, len(committed), wrong)]


def stale(session_id: int, committed: list[int]) -> Iterable[draft_service_pb2.Proposal]:
    behind = max(len(committed) - 4, 1)
    return [chain(session_id, behind, [*committed[behind:], 7, 7, 7])]


def ahead(session_id: int, committed: list[int]) -> Iterable[draft_service_pb2.Proposal]:
    return [chain(session_id, len(committed) + 400, [1, 2, 3])]


def silent(session_id: int, committed: list[int]) -> Iterable[draft_service_pb2.Proposal]:
    del session_id, committed
    return []


@pytest.mark.asyncio
@pytest.mark.parametrize("propose", [lying, stale, ahead, silent])
async def test_a_bad_drafter_changes_no_token(
    propose: Propose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """B-class failures: wrong, stale and impossible drafts cost work and nothing else."""
    async with (
        running_drafter(ScriptedDrafter(propose=propose)) as address,
        running_tensorrt_verifier(monkeypatch, tmp_path, pools={POOL: address}) as verifier,
    ):
        received = await drafted(verifier)

    assert received.token_ids == expected()


@pytest.mark.asyncio
async def test_a_late_drafter_still_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tree that arrives a few steps late is re-rooted along what was committed since."""
    propose = oracle(PROMPT + expected(), depth=24)
    async with (
        running_drafter(ScriptedDrafter(propose=propose, delay_seconds=0.05)) as address,
        running_tensorrt_verifier(monkeypatch, tmp_path, pools={POOL: address}) as verifier,
    ):
        verifier.world.step_seconds = 0.02
        received = await drafted(verifier)

    assert received.token_ids == expected()
    assert received.num_accepted > 0


@pytest.mark.asyncio
async def test_pausing_under_kv_pressure_changes_no_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A paused request is freed, comes back with a longer prompt and re-opens in the mailbox."""
    prompts = {index: [index, 2, 3 + index] for index in range(1, 5)}
    async with (
        running_drafter(ScriptedDrafter(propose=lying)) as address,
        running_tensorrt_verifier(
            monkeypatch, tmp_path, pools={POOL: address}, max_kv_tokens=120
        ) as verifier,
        attached(verifier.address) as gateway,
    ):
        await eventually(lambda: verifier.server.links[POOL].status.cause is None)
        await gateway.start(
            *(start(i, prompt, max_tokens=40, pool=POOL) for i, prompt in prompts.items())
        )
        received = {index: await gateway.result(index) for index in prompts}
        num_pauses = verifier.world.executors[0].num_pauses

    assert num_pauses > 0
    for index, prompt in prompts.items():
        assert received[index].token_ids == greedy(prompt, 40)


@pytest.mark.asyncio
async def test_a_stop_token_within_an_accepted_chain_ends_the_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = expected()[20]
    first = expected().index(stop)
    propose = oracle(PROMPT + expected(), depth=12)
    async with (
        running_drafter(ScriptedDrafter(propose=propose)) as address,
        running_tensorrt_verifier(monkeypatch, tmp_path, pools={POOL: address}) as verifier,
        attached(verifier.address) as gateway,
    ):
        await eventually(lambda: verifier.server.links[POOL].status.cause is None)
        request = start(1, PROMPT, max_tokens=NUM_TOKENS, pool=POOL)
        request.limits.stop_token_ids.append(stop)
        await gateway.start(request)
        received = await gateway.result(1)

    assert received.token_ids == expected()[: first + 1]
    assert received.finish_reason == types_pb2.FINISH_REASON_STOP
    assert received.results[-1].matched_stop_token_id == stop


@pytest.mark.asyncio
async def test_drafting_can_be_switched_while_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drafter = ScriptedDrafter(propose=oracle(PROMPT + greedy(PROMPT, 200), depth=6))
    async with (
        running_drafter(drafter) as address,
        running_tensorrt_verifier(monkeypatch, tmp_path, pools={POOL: address}) as verifier,
        attached(verifier.address) as gateway,
    ):
        verifier.world.step_seconds = 0.01
        await eventually(lambda: verifier.server.links[POOL].status.cause is None)
        await gateway.start(start(1, PROMPT, max_tokens=200))
        await eventually(lambda: len(gateway.received[1].token_ids) > 10)
        await gateway.send(_switch(1, POOL))
        await eventually(lambda: gateway.received[1].num_accepted > 5)
        await gateway.send(_switch(1, ""))
        received = await gateway.result(1)

    assert received.token_ids == greedy(PROMPT, 200)
    assert received.results[1].fallback == types_pb2.DRAFT_FALLBACK_REQUESTED


def _switch(request_id: int, pool: str) -> verify_service_pb2.AttachRequest:
    change = verify_service_pb2.SetDrafting(
        request_id=request_id, drafting=types_pb2.DraftingPolicy(pool=pool)
    )
    return verify_service_pb2.AttachRequest(set_draftings=[change])


@pytest.mark.asyncio
async def test_a_resumed_request_continues_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_tensorrt_verifier(monkeypatch, tmp_path) as verifier,
        attached(verifier.address) as gateway,
    ):
        request = start(1, PROMPT, max_tokens=30)
        request.emitted_token_ids.extend(expected()[:12])
        await gateway.start(request)
        received = await gateway.result(1)

    assert received.token_ids == expected()[12:30]
