"""The blocking client, called from a thread beside the loop of its scripted gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import paceline
from paceline.errors import Cancelled, ConfigurationError, InvalidRequest, Unavailable
from paceline.events import Delta, Event, Finished, Started, Summary
from paceline.v1 import generation_service_pb2 as messages
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

HELLO = Turn((started(), delta("Hel", 4, 5), delta("lo", 6), finished(), summary(3)))

pytestmark = pytest.mark.asyncio


async def test_stream_yields_the_same_events_as_the_async_client() -> None:
    gateway = ScriptedGateway(HELLO)

    async with serving(gateway):
        events = await asyncio.to_thread(_collected, gateway.address)

    assert [type(event) for event in events] == [Started, Delta, Delta, Finished, Summary]
    assert gateway.time_remaining[0] is not None


async def test_generate_returns_the_whole_answer() -> None:
    gateway = ScriptedGateway(HELLO)

    def generate() -> paceline.Generation:
        with paceline.Client(gateway.address) as client:
            return client.generate("hi")

    async with serving(gateway):
        generation = await asyncio.to_thread(generate)

    assert generation.text == "Hello"
    assert generation.token_ids == (4, 5, 6)


async def test_leaving_the_loop_cancels_the_request() -> None:
    gateway = ScriptedGateway(Turn((started(), delta("Hel")), hangs=True))

    def leave_early(client: paceline.Client) -> None:
        for event in client.stream("hi"):
            if isinstance(event, Delta):
                break

    async with serving(gateway):
        with paceline.Client(gateway.address) as client:
            await asyncio.to_thread(leave_early, client)
            await asyncio.wait_for(gateway.cancelled.wait(), 5)


async def test_closing_the_iterator_cancels_the_request() -> None:
    gateway = ScriptedGateway(Turn((started(),), hangs=True))

    def close_early(client: paceline.Client) -> None:
        with closing(client.stream("hi")) as events:
            next(events)

    async with serving(gateway):
        with paceline.Client(gateway.address) as client:
            await asyncio.to_thread(close_early, client)
            await asyncio.wait_for(gateway.cancelled.wait(), 5)


async def test_errors_are_those_of_the_async_client() -> None:
    gateway = ScriptedGateway(
        Turn(error=InvalidRequest("bad", field="sampling.top_p")),
        Turn((started(),), error=Cancelled("gone")),
        *[Turn((started(),), error=Unavailable("died", retry_after_seconds=0.01))] * 4,
    )

    async with serving(gateway):
        with pytest.raises(InvalidRequest, match="bad") as refused:
            await asyncio.to_thread(_collected, gateway.address)
        with pytest.raises(Cancelled):
            await asyncio.to_thread(_collected, gateway.address)
        with pytest.raises(Unavailable):
            await asyncio.to_thread(_collected, gateway.address)

    assert refused.value.field == "sampling.top_p"


async def test_models_are_described_with_their_pools() -> None:
    pool = messages.ModelDraftPool(
        name="ngram", cause=types_pb2.DRAFT_FALLBACK_MISMATCH, detail="other tokenizer"
    )
    gateway = ScriptedGateway()
    gateway.models.append(messages.Model(name="tiny", vocab_size=9, draft_pools=[pool]))

    def models() -> tuple[paceline.Model, ...]:
        with paceline.Client(gateway.address) as client:
            return client.models()

    async with serving(gateway):
        (model,) = await asyncio.to_thread(models)

    assert model.vocab_size == 9
    assert model.draft_pools[0].cause == "mismatch"
    assert not model.draft_pools[0].available


def _collected(address: str) -> list[Event]:
    with paceline.Client(address) as client:
        return list(client.stream("hi"))


TARGETS = ["127.0.0.1:9", "[::1]:9", "dns:///gateway:9", "dns:gateway:9", "unix:/tmp/socket"]


@pytest.mark.parametrize("target", TARGETS)
async def test_every_form_of_a_target_is_taken(target: str) -> None:
    def make() -> None:
        paceline.Client(target).close()

    await asyncio.to_thread(make)
    await paceline.AsyncClient(target).aclose()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("", "target is host:port, such as 127.0.0.1:50051, not ''"),
        ("localhost", "target is host:port, such as 127.0.0.1:50051, not 'localhost'"),
        ("127.0.0.1:99999", "target is host:port, such as"),
        ("127.0.0.1:0", "port 0 is none to connect to"),
        ("::1:9", "an IPv6 address is [in brackets]"),
        ("http://localhost:9", "target is host:port without a scheme"),
        ("dns:///gateway", "target is dns:///host:port, port included, not 'dns:///gateway'"),
        ("dns:///[::1]", "target is dns:///host:port, port included"),
        (None, "target is host:port, such as 127.0.0.1:50051, not None"),
    ],
)
@pytest.mark.parametrize("kind", [paceline.Client, paceline.AsyncClient])
async def test_what_cannot_be_dialled_is_refused_before_any_call(
    kind: Callable[[Any], object], target: Any, told: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        kind(target)

    assert told in refused.value.message


async def test_a_closed_client_says_so() -> None:
    def ask() -> None:
        client = paceline.Client("127.0.0.1:9")
        client.close()
        for call in (
            client.models,
            lambda: client.generate("hi"),
            lambda: list(client.stream("hi")),
        ):
            with pytest.raises(ConfigurationError, match="the client is closed; make a new one"):
                call()

    await asyncio.to_thread(ask)
