"""A verifier that stops serves what arrives before everybody has heard of it."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.doubles.running_verifier import (
    attached,
    eventually,
    make_engine,
    running_verifier,
    start,
)

pytestmark = pytest.mark.asyncio

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


async def test_requests_are_served_until_the_propagation_delay_is_over() -> None:
    async with (
        running_verifier(make_engine(pace_seconds=0.002), propagation_delay_seconds=1.0) as (
            server,
            address,
        ),
        attached(address) as gateway,
    ):
        await gateway.start(start(1, [1, 2], max_tokens=4))
        await gateway.result(1)
        draining = asyncio.create_task(server.drain())
        await eventually(lambda: gateway.messages[-1].draining)
        await gateway.start(start(2, [3, 4], max_tokens=400))
        await eventually(lambda: bool(gateway.received[2].token_ids))
        await eventually(lambda: server.router.is_closed)
        await gateway.start(start(3, [5, 6], max_tokens=4))
        late, served = await gateway.result(3), await gateway.result(2)
        await draining

    assert len(served.token_ids) == 400
    assert late.failure is not None
    assert late.failure.code == UNAVAILABLE
