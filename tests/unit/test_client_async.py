from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest

import paceline
from paceline.errors import (
    Cancelled,
    ConfigurationError,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from paceline.events import Delta, Event, Finished, FinishReason, Started, Summary
from paceline.v1 import types_pb2
from tests.doubles.scripted_gateway import (
    ScriptedGateway,
    Turn,
    delta,
    finished,
    serving,
    started,
    summary,
)

HELLO = Turn((started(), delta("Hel", 4, 5), delta("lo", 6), finished(matched="!"), summary(3)))

pytestmark = pytest.mark.asyncio


async def test_stream_yields_typed_events_in_order() -> None:
    gateway = ScriptedGateway(HELLO)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        events = [event async for event in client.stream("hi", seed=7, return_token_ids=True)]

    assert [type(event) for event in events] == [Started, Delta, Delta, Finished, Summary]
    assert isinstance(events[0], Started)
    assert events[0].sampling.seed == 7
    assert events[1] == Delta("Hel", (4, 5))
    assert events[3] == Finished(FinishReason.STOP, "!")
    assert isinstance(events[4], Summary)
    assert events[4].speculation.mean_acceptance_length == 2.5
    assert events[4].speculation.fallbacks == ("load",)


async def test_generate_returns_the_whole_answer_with_ids() -> None:
    gateway = ScriptedGateway(HELLO)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        generation = await client.generate("hi", temperature=0)

    assert generation.text == "Hello"
    assert generation.token_ids == (4, 5, 6)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.seed == 7
    assert generation.usage.completion_tokens == 3
    assert gateway.requests[0].output.return_token_ids


async def test_leaving_the_loop_cancels_the_request() -> None:
    gateway = ScriptedGateway(Turn((started(), delta("Hel")), hangs=True))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        async for event in client.stream("hi"):
            if isinstance(event, Delta):
                break
        gc.collect()
        await asyncio.wait_for(gateway.cancelled.wait(), 5)


async def test_closing_the_iterator_cancels_the_request() -> None:
    gateway = ScriptedGateway(Turn((started(),), hangs=True))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        async with aclosing(client.stream("hi")) as events:
            await anext(events)
        await asyncio.wait_for(gateway.cancelled.wait(), 5)


async def test_cancelling_the_task_cancels_the_request() -> None:
    gateway = ScriptedGateway(Turn((started(),), hangs=True))
    begun = asyncio.Event()

    async def consume(client: paceline.AsyncClient) -> None:
        async for _ in client.stream("hi"):
            begun.set()

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        task = asyncio.create_task(consume(client))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gateway.cancelled.wait(), 5)


async def test_cancel_by_the_server_is_an_error_and_not_a_cancelled_task() -> None:
    turn = Turn((started(),), error=Cancelled("drained away"))
    gateway = ScriptedGateway(turn, turn)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(Cancelled, match="drained away"):
            await _collected(client)
        with pytest.raises(Cancelled, match="drained away"):
            await client.generate("hi")


async def test_error_keeps_its_field_reason_and_hint() -> None:
    gateway = ScriptedGateway(
        Turn(error=InvalidRequest("top_p is above 1", field="sampling.top_p")),
        Turn((started(),), error=Overloaded("queue full", retry_after_seconds=1.5)),
    )

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(InvalidRequest, match="top_p is above 1") as invalid:
            await _collected(client)
        with pytest.raises(Overloaded) as overloaded:
            await _collected(client)

    assert invalid.value.field == "sampling.top_p"
    assert overloaded.value.retry_after_seconds == 1.5


async def test_unavailable_is_retried_before_the_first_message() -> None:
    gateway = ScriptedGateway(Turn(error=Unavailable("draining")), HELLO)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        events = await _collected(client)

    assert len(gateway.requests) == 2
    assert isinstance(events[-1], Summary)


async def test_nothing_is_resumed_after_the_first_message_when_none_is_wished() -> None:
    gateway = ScriptedGateway(Turn((started(),), error=Unavailable("died")))

    async with serving(gateway), paceline.AsyncClient(gateway.address, max_resumes=0) as client:
        with pytest.raises(Unavailable, match="died"):
            await _collected(client)

    assert len(gateway.requests) == 1


async def test_default_timeout_is_always_set() -> None:
    gateway = ScriptedGateway(HELLO, HELLO)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        await _collected(client)
        await client.generate("hi", timeout=5)

    assert 590 < (gateway.time_remaining[0] or 0) < 610
    assert 4 < (gateway.time_remaining[1] or 0) < 6


async def test_deadline_is_an_error_of_its_own() -> None:
    gateway = ScriptedGateway(Turn((started(),), hangs=True))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(DeadlineExceeded):
            async for _ in client.stream("hi", timeout=0.2):
                pass


async def test_gateway_that_is_not_ready_gets_no_calls() -> None:
    """The channel watches the health name ``readiness`` and calls only ready gateways."""
    ready, draining = ScriptedGateway(*[HELLO] * 4), ScriptedGateway()

    async with serving(ready), serving(draining, ready=False):
        target = f"ipv4:{ready.address},{draining.address}"
        async with paceline.AsyncClient(target) as client:
            for _ in range(4):
                await _collected(client)

    assert len(ready.requests) == 4
    assert draining.requests == []


async def test_calls_take_turns_between_ready_gateways() -> None:
    first, second = ScriptedGateway(*[HELLO] * 8), ScriptedGateway(*[HELLO] * 8)

    async with serving(first), serving(second):
        target = f"ipv4:{first.address},{second.address}"
        async with paceline.AsyncClient(target) as client:
            while not (first.requests and second.requests):
                await _collected(client)
        first.turns.clear()
        second.turns.clear()


async def test_only_gateway_not_ready_is_unavailable() -> None:
    gateway = ScriptedGateway()

    async with serving(gateway, ready=False), paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(Unavailable):
            await _collected(client)


async def test_nobody_listening_is_unavailable() -> None:
    gateway = ScriptedGateway()
    async with serving(gateway):
        pass

    async with paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(Unavailable):
            await _collected(client)


async def test_fault_of_the_server_is_engine_failed() -> None:
    gateway = ScriptedGateway(Turn(error=EngineFailed("a bug")))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(EngineFailed, match="a bug"):
            await _collected(client)


async def test_finish_reason_of_a_newer_server_is_unknown() -> None:
    newer = finished(types_pb2.FINISH_REASON_UNSPECIFIED)
    gateway = ScriptedGateway(Turn((started(), newer)))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        events = await _collected(client)

    assert events[-1] == Finished(FinishReason.UNKNOWN)


async def test_tokenize_takes_text_or_messages() -> None:
    gateway = ScriptedGateway()

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        text = await client.tokenize("ab")
        chat = await client.tokenize(messages=[{"role": "user", "content": "c"}])

    assert text.token_ids == (97, 98)
    assert chat.token_ids == (99,)


async def _collected(client: paceline.AsyncClient) -> list[Event]:
    return [event async for event in client.stream("hi")]


async def test_a_closed_client_says_so() -> None:
    client = paceline.AsyncClient("127.0.0.1:9")
    await client.aclose()

    for call in (client.models(), client.generate("hi"), anext(client.stream("hi"))):
        with pytest.raises(ConfigurationError, match="the client is closed; make a new one"):
            await call
