"""Draft distributions over the wire: read from trusted pools, checked, and told to drafters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from paceline.v1 import draft_service_pb2, types_pb2
from tests.doubles.running_verifier import (
    POOL,
    AttachedGateway,
    attached,
    eventually,
    make_engine,
    running_drafter,
    start,
)
from tests.doubles.scripted_drafter import Proposals, ScriptedDrafter
from verify_service.engine.engine_thread import EngineThread
from verify_service.engine.sampling import SamplingParams
from verify_service.server import Loaded, VerifyServer
from verify_service.settings import VerifySettings

pytestmark = pytest.mark.asyncio

PROMPT = [1, 2, 3, 4, 5]
SAMPLED = types_pb2.SamplingParams(
    temperature=0.75, seed=7, verification_rule=types_pb2.VERIFICATION_RULE_REJECTION
)


@asynccontextmanager
async def _line(
    drafter: ScriptedDrafter, trusted: tuple[str, ...]
) -> AsyncIterator[tuple[VerifyServer, AttachedGateway]]:
    async with running_drafter(drafter) as address:
        settings = VerifySettings(target="table", pools={POOL: address}, trusted_pools=trusted)
        engine = make_engine(pace_seconds=0.001)
        server = VerifyServer(Loaded(EngineThread(engine), SamplingParams()), settings)
        port = await server.start()
        try:
            await eventually(lambda: server.links[POOL].status.cause is None)
            async with attached(f"127.0.0.1:{port}") as gateway:
                yield server, gateway
        finally:
            await server.aclose()


def _drawing(probs: list[float]) -> ScriptedDrafter:
    def propose(session_id: int, committed: list[int]) -> Proposals:
        drawn = types_pb2.DrawnChildren(parent=0, token_ids=[1, 2, 3], probs=probs)
        tree = types_pb2.TokenTree(token_ids=[1, 2], parents=[0, 0], drawn_children=[drawn])
        base_len = len(committed)
        return [draft_service_pb2.Proposal(session_id=session_id, base_len=base_len, tree=tree)]

    return ScriptedDrafter(propose)


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_drafter_draws_where_it_is_trusted_and_guesses_elsewhere(is_trusted: bool) -> None:
    """B018: nobody is told the seed; whoever is not believed had better guess greedily."""
    drafter = _drawing([0.5, 0.25, 0.25])
    async with _line(drafter, (POOL,) if is_trusted else ()) as (server, gateway):
        asked = start(1, PROMPT, max_tokens=12, sampling=SAMPLED, pool=POOL)
        await gateway.start(asked)
        received = await gateway.result(1)
        (opened,) = [each for message in drafter.requests for each in message.opens]
        counts = dict(server.links[POOL].counts)

    assert len(received.token_ids) == 12
    assert opened.seed != SAMPLED.seed
    assert opened.wants_drawn_children is is_trusted
    assert opened.temperature == (0.75 if is_trusted else 0.0)
    assert not [name for name in counts if name.startswith("invalid")]


async def test_malformed_distribution_is_counted_and_the_answer_goes_on() -> None:
    """B074: from a trusted pool too; the tree is used, its nodes counting as guesses."""
    async with _line(_drawing([0.9, 0.9, 0.9]), (POOL,)) as (server, gateway):
        await gateway.start(start(1, PROMPT, max_tokens=12, sampling=SAMPLED, pool=POOL))
        received = await gateway.result(1)
        counts = dict(server.links[POOL].counts)

    assert len(received.token_ids) == 12
    assert counts["invalid_distribution_sum"] > 0
    assert counts["trees"] >= counts["invalid_distribution_sum"]
    assert "invalid" not in counts
