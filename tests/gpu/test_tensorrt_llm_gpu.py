"""
The tensorrt-llm engine on the real package. Runs inside NVIDIA's release image only:

    docs/engines.md has the one command; PACELINE_TEST_MODEL names a model folder.

Until this file has passed somewhere, everything known about the engine comes from fakes.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from paceline.v1 import types_pb2, verify_service_pb2
from tests.doubles.running_verifier import (
    POOL,
    AttachedGateway,
    attached,
    eventually,
    running_drafter,
    start,
)
from tests.doubles.scripted_drafter import Proposals, ScriptedDrafter, chain

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
pytest.importorskip("tensorrt_llm", reason="runs inside NVIDIA's release image")
torch = pytest.importorskip("torch")

from verify_service.server import VerifyServer, load  # noqa: E402 after the skip
from verify_service.settings import VerifySettings  # noqa: E402 likewise

MODEL = os.environ.get("PACELINE_TEST_MODEL", "")
NUM_DRAFTS = 4
MAX_TIE_GAP = 0.15
"""Logits this close count as tied in half precision."""
PROMPT = [1, 450, 4996, 17354, 1701, 29916, 432, 17204]
VERY_UNLIKELY_CHI_SQUARE = 2.0
"""Per degree of freedom; with 10 or more of them chance exceeds it about once in 10,000."""


class Setup:
    """A server on the real engine, and a drafter whose script a test sets."""

    def __init__(self, address: str, drafter: ScriptedDrafter, server: VerifyServer) -> None:
        self.address = address
        self.drafter = drafter
        self.server = server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup() -> AsyncIterator[Setup]:
    if not MODEL:
        pytest.skip("set PACELINE_TEST_MODEL to a model folder")
    drafter = ScriptedDrafter()
    async with running_drafter(drafter) as pool:
        settings = VerifySettings(
            engine="tensorrt-llm",
            model=Path(MODEL),
            pools={POOL: pool},
            max_draft_tokens=NUM_DRAFTS,
            max_running=8,
            num_kv_blocks=128,
        )
        server = VerifyServer(await asyncio.to_thread(load, settings), settings)
        port = await server.start()
        await eventually(lambda: server.links[POOL].status.cause is None)
        try:
            yield Setup(f"127.0.0.1:{port}", drafter, server)
        finally:
            await server.aclose()


async def run(
    gateway: AttachedGateway, request_id: int, *, max_tokens: int, pool: str = "", **fields: object
) -> list[int]:
    await gateway.start(start(request_id, PROMPT, max_tokens=max_tokens, pool=pool, **fields))
    received = await gateway.result(request_id, timeout_seconds=120)
    assert received.failure is None, received.failure
    return received.token_ids


def following(target: list[int], depth: int) -> ScriptedDrafter:
    """Return a drafter's script that knows the text."""

    def propose(session_id: int, committed: list[int]) -> Proposals:
        rest = (PROMPT + target)[len(committed) : len(committed) + depth]
        return [chain(session_id, len(committed), rest)] if rest else []

    return ScriptedDrafter(propose=propose)


def wrong(session_id: int, committed: list[int]) -> Proposals:
    return [chain(session_id, len(committed), [(committed[-1] + 17) % 1000] * NUM_DRAFTS)]


def assert_near_tie(reference: list[int], other: list[int]) -> None:
    """Where two greedy texts part, the target must have been undecided, teacher-forced."""
    pairs = zip(reference, other, strict=False)
    parting = next((i for i, (left, right) in enumerate(pairs) if left != right), None)
    if parting is None:
        return
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(MODEL, torch_dtype=torch.bfloat16).cuda()
    tokens = torch.tensor([PROMPT + reference[:parting]], device="cuda")
    logits = model(tokens).logits[0, -1].float()
    gap = abs(float(logits[reference[parting]] - logits[other[parting]]))
    assert gap <= MAX_TIE_GAP


@pytest.mark.asyncio(loop_scope="module")
async def test_drafts_change_no_greedy_token_beyond_near_ties(setup: Setup) -> None:
    async with attached(setup.address) as gateway:
        plain = await run(gateway, 1, max_tokens=128)
        setup.drafter.propose = following(plain, 8).propose
        helped = await run(gateway, 2, max_tokens=128, pool=POOL)
        setup.drafter.propose = wrong
        hindered = await run(gateway, 3, max_tokens=128, pool=POOL)
        received = gateway.received[2]

    assert_near_tie(plain, helped)
    assert_near_tie(plain, hindered)
    assert received.num_accepted > 0
    sizes = {len(result.token_ids) for result in received.results}
    assert max(sizes) <= NUM_DRAFTS + 1
    assert len(received.results) < 128


@pytest.mark.asyncio(loop_scope="module")
async def test_sampled_tokens_keep_their_distribution(setup: Setup) -> None:
    """Two-sample chi-square on the second token, drawn with and without (wrong) drafts."""
    setup.drafter.propose = wrong
    counts = {pool: Counter[int]() for pool in ("", POOL)}
    async with attached(setup.address) as gateway:
        for pool, count in counts.items():
            for first in range(0, 1600, 8):
                ids = [first + index + (100_000 if pool else 0) for index in range(8)]
                requests = [start(i, PROMPT, max_tokens=3, pool=pool) for i in ids]
                for request in requests:
                    request.sampling.temperature = 1.0
                await gateway.start(*requests)
                for request_id in ids:
                    count[(await gateway.result(request_id, 60)).token_ids[2]] += 1

    plain, drafted = counts[""], counts[POOL]
    tokens = [token for token in plain | drafted if plain[token] + drafted[token] >= 20]
    statistic = sum((plain[t] - drafted[t]) ** 2 / (plain[t] + drafted[t]) for t in tokens)
    assert statistic <= VERY_UNLIKELY_CHI_SQUARE * max(len(tokens), 10)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stop_token_inside_a_chain_ends_the_text(setup: Setup) -> None:
    async with attached(setup.address) as gateway:
        plain = await run(gateway, 1, max_tokens=40)
        stop = plain[20]
        setup.drafter.propose = following(plain, 8).propose
        request = start(2, PROMPT, max_tokens=40, pool=POOL)
        request.limits.stop_token_ids.append(stop)
        await gateway.start(request)
        received = await gateway.result(2, 60)

    assert received.token_ids[-1] == stop
    assert received.token_ids.count(stop) == 1
    assert received.finish_reason == types_pb2.FINISH_REASON_STOP


@pytest.mark.asyncio(loop_scope="module")
async def test_an_abort_in_the_middle_frees_the_place(setup: Setup) -> None:
    async with attached(setup.address) as gateway:
        await gateway.start(*(start(i, PROMPT, max_tokens=200, pool=POOL) for i in range(1, 9)))
        await eventually(lambda: len(gateway.received[1].token_ids) > 5, 60)
        cancels = [verify_service_pb2.Cancel(request_id=i) for i in range(1, 9)]
        await gateway.send(verify_service_pb2.AttachRequest(cancels=cancels))
        ended = [await gateway.result(i, 60) for i in range(1, 9)]
        after = await run(gateway, 10, max_tokens=5)

    assert all(each.finish_reason == types_pb2.FINISH_REASON_CANCELLED for each in ended)
    assert len(after) == 5


@pytest.mark.asyncio(loop_scope="module")
async def test_kv_pressure_pauses_and_loses_nothing(setup: Setup) -> None:
    """Eight long requests do not fit into 128 blocks of 16 tokens at once."""
    setup.drafter.propose = wrong
    async with attached(setup.address) as gateway:
        plain = await run(gateway, 1, max_tokens=400)
        ids = range(2, 10)
        await gateway.start(*(start(i, PROMPT, max_tokens=400, pool=POOL) for i in ids))
        texts = [(await gateway.result(i, 300)).token_ids for i in ids]

    for text in texts:
        assert len(text) == 400
        assert_near_tie(plain, text)


def test_the_installation_is_as_recorded() -> None:
    from verify_service.engines.tensorrt_llm.package import load_package, probe

    release, found = probe(load_package().version)

    assert found == []
    assert release is not None
