"""The bench of the gateway's cost measures a gateway process, in small."""

from __future__ import annotations

import pytest

from bench.gateway_cost import forwarding_cost, idle_bytes, measured_gateway, stalled_bytes

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]


async def test_messages_tokens_and_memory_of_a_gateway_process_are_counted() -> None:
    async with measured_gateway() as gateway:
        cost = await forwarding_cost(gateway, 1, 8, seconds=0.5)
        stalled = await stalled_bytes(gateway, 4)
        idle = await idle_bytes(gateway, 8)

    assert cost.num_messages > 5
    assert cost.num_tokens >= 8 * cost.num_messages
    assert cost.cpu_seconds > 0
    assert stalled < 4 * 1_000_000
    assert idle < 8 * 1_000_000
