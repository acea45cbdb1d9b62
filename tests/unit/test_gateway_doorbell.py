"""The doorbell: a ring wakes one waiting task, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from gateway.doorbell import Doorbell

pytestmark = pytest.mark.asyncio


async def test_a_ring_before_anybody_waits_is_heard_once() -> None:
    bell = Doorbell(asyncio.get_running_loop())
    bell.ring()
    bell.ring()

    await asyncio.wait_for(bell.heard(), 1)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bell.heard(), 0.01)


async def test_a_ring_wakes_the_waiting_task_and_rings_meanwhile_are_one() -> None:
    bell = Doorbell(asyncio.get_running_loop())
    waiting = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)

    bell.ring()
    bell.ring()
    await asyncio.wait_for(waiting, 1)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bell.heard(), 0.01)


async def test_a_ring_after_a_cancelled_wait_is_kept_for_the_next() -> None:
    bell = Doorbell(asyncio.get_running_loop())
    given_up = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    given_up.cancel()
    bell.ring()
    await asyncio.gather(given_up, return_exceptions=True)

    await asyncio.wait_for(bell.heard(), 1)
