"""The link to a draft pool outlives whatever ends its streams."""

from __future__ import annotations

import asyncio

import pytest

from paceline.v1 import types_pb2
from tests.doubles.running_verifier import (
    POOL,
    attached,
    eventually,
    make_engine,
    running_drafter,
    running_verifier,
    start,
)
from tests.doubles.scripted_drafter import ScriptedDrafter
from verify_service.draft_link import DraftLink, LinkLimits
from verify_service.engine.steps import Command, PoolUp, SessionCommitted

pytestmark = pytest.mark.asyncio

IMPATIENT = LinkLimits(backoff_seconds=0.001, max_backoff_seconds=0.001)


async def test_streams_that_end_while_written_to_are_opened_again() -> None:
    """B074: a write may meet a stream that is over before its reader knows."""
    sent: list[Command] = []
    async with running_drafter(ScriptedDrafter(close_after=2)) as address:
        link = DraftLink(POOL, address, make_engine().info, sent.append, IMPATIENT)
        link.start()
        try:
            async with asyncio.timeout(20):
                while sent.count(PoolUp(POOL)) < 100:
                    link.publish([SessionCommitted(POOL, 1, 5, (1,))])
                    await asyncio.sleep(0.0002)
        finally:
            await link.aclose()


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (types_pb2.DRAFT_FALLBACK_TOO_LONG, types_pb2.DRAFT_FALLBACK_TOO_LONG),
        (99, types_pb2.DRAFT_FALLBACK_UNREACHABLE),
    ],
    ids=["known cause", "cause of a later release"],
)
async def test_refused_session_goes_on_without_drafts_and_says_why(cause: int, told: int) -> None:
    """B071, B105: the answer goes on; the link and its other sessions are not harmed."""
    drafter = ScriptedDrafter(refusal=cause)
    async with (
        running_drafter(drafter) as pool,
        running_verifier(make_engine(pace_seconds=0.002), {POOL: pool}) as (server, address),
        attached(address) as gateway,
    ):
        await eventually(lambda: server.links[POOL].status.cause is None)
        await gateway.start(start(1, [1, 2, 3], max_tokens=60, pool=POOL))
        received = await gateway.result(1)

        assert len(received.token_ids) == 60
        assert received.results[-1].fallback == told
        assert server.links[POOL].status.cause is None
        assert drafter.num_streams == 1
