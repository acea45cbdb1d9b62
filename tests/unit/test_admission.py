"""Who may run, who waits, who is turned away."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admission import Admission, Room
from gateway.generation import PriorityClass
from paceline.errors import Overloaded, Unavailable

pytestmark = pytest.mark.asyncio

STANDARD = PriorityClass.STANDARD


async def settle() -> None:
    """Let every task that can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_full_queue_turns_away_with_a_time_to_retry() -> None:
    admission = Admission(max_running=1, max_waiting=1)
    await admission.acquire(1, STANDARD)
    waiting = asyncio.create_task(admission.acquire(1, STANDARD))
    await settle()

    with pytest.raises(Overloaded) as refused:
        await admission.acquire(1, STANDARD)

    assert refused.value.retry_after_seconds is not None
    assert refused.value.retry_after_seconds > 0
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_room_goes_to_those_that_wait_in_order_of_priority_then_arrival() -> None:
    admission = Admission(max_running=1, max_waiting=8)
    held = await admission.acquire(1, STANDARD)
    order: list[str] = []

    async def wait(name: str, priority: PriorityClass) -> None:
        room = await admission.acquire(1, priority)
        order.append(name)
        room.release()

    async with asyncio.TaskGroup() as tasks:
        for name, priority in [
            ("batch", PriorityClass.BATCH),
            ("first", STANDARD),
            ("second", STANDARD),
            ("interactive", PriorityClass.INTERACTIVE),
        ]:
            tasks.create_task(wait(name, priority))
            await settle()
        held.release()

    assert order == ["interactive", "first", "second", "batch"]
    assert admission.num_running == 0


async def test_room_is_given_back_once() -> None:
    admission = Admission(max_running=2, max_waiting=0)
    room = await admission.acquire(1, STANDARD)
    await admission.acquire(1, STANDARD)

    room.release()
    room.release()

    assert admission.num_running == 1


async def test_a_cancelled_wait_leaves_no_trace() -> None:
    admission = Admission(max_running=1, max_waiting=8)
    held = await admission.acquire(1, STANDARD)
    gone = asyncio.create_task(admission.acquire(1, STANDARD))
    next_one = asyncio.create_task(admission.acquire(1, STANDARD))
    await settle()

    gone.cancel()
    held.release()
    room = await next_one

    assert isinstance(room, Room)
    assert (admission.num_running, admission.num_waiting) == (1, 0)


async def test_a_wait_cancelled_just_after_it_was_granted_gives_its_room_back() -> None:
    admission = Admission(max_running=1, max_waiting=8)
    held = await admission.acquire(1, STANDARD)
    waiting = asyncio.create_task(admission.acquire(1, STANDARD))
    await settle()

    held.release()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert admission.num_running == 0


async def test_several_sequences_wait_until_all_have_room() -> None:
    admission = Admission(max_running=3, max_waiting=8)
    first = await admission.acquire(2, STANDARD)
    pair = asyncio.create_task(admission.acquire(2, STANDARD))
    await settle()

    assert not pair.done()
    first.release()
    await pair

    assert admission.num_running == 2


async def test_more_sequences_than_ever_fit_run_alone() -> None:
    admission = Admission(max_running=2, max_waiting=0)

    room = await admission.acquire(8, STANDARD)

    assert admission.num_running == 2
    room.release()
    assert admission.num_running == 0


async def test_closing_turns_away_what_waits_and_leaves_what_runs() -> None:
    admission = Admission(max_running=1, max_waiting=8)
    room = await admission.acquire(1, STANDARD)
    waiting = [asyncio.create_task(admission.acquire(1, STANDARD)) for _ in range(3)]
    await settle()

    admission.close(Unavailable("stopping"))
    waiting[0].cancel()  # turned away and cancelled at the same moment
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    room.release()

    assert [type(outcome) for outcome in outcomes] == [
        asyncio.CancelledError,
        Unavailable,
        Unavailable,
    ]
    assert (admission.num_running, admission.num_waiting) == (0, 0)
