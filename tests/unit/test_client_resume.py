"""A client whose gateway is lost in the middle of an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import paceline
from paceline.errors import ConfigurationError, Overloaded, Unavailable
from paceline.events import Delta, Event, Finished, Started, Summary
from paceline.resumption import ResumableStream
from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.certificates import Authority
from tests.doubles.scripted_gateway import (
    ScriptedGateway,
    Turn,
    delta,
    finished,
    serving,
    started,
    summary,
)

LOST = Unavailable("gone", retry_after_seconds=0.01)
FIRST = Turn((started(), delta("Hel", 4, 5)), error=LOST)
REST = Turn((started(), delta("lo", 6, completion_tokens=3), finished(matched="!"), summary(3)))


async def _events(client: paceline.AsyncClient, **options: object) -> list[Event]:
    return [event async for event in client.stream("hi", **options)]  # type: ignore[arg-type]


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


@pytest.mark.asyncio
async def test_a_lost_stream_goes_on_from_the_ids_and_the_seed() -> None:
    gateway = ScriptedGateway(FIRST, REST)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        events = await _events(client)

    assert [type(event) for event in events] == [Started, Delta, Delta, Finished, Summary]
    assert _text(events) == "Hello"
    again = gateway.requests[1]
    assert list(again.resume_token_ids) == [4, 5]
    assert again.sampling.seed == 7
    assert (again.model, again.request_id, again.text) == ("tiny", "r1", "hi")


@pytest.mark.asyncio
async def test_ids_are_shown_only_to_those_who_asked_for_them() -> None:
    gateway = ScriptedGateway(FIRST, REST, FIRST, REST)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        hidden = await _events(client)
        shown = await _events(client, return_token_ids=True)

    assert [event.token_ids for event in hidden if isinstance(event, Delta)] == [(), ()]
    assert [event.token_ids for event in shown if isinstance(event, Delta)] == [(4, 5), (6,)]
    assert all(request.output.return_token_ids for request in gateway.requests)


@pytest.mark.asyncio
async def test_a_resume_can_be_resumed_as_often_as_allowed() -> None:
    more = Turn((started(), delta("x", 9)), error=LOST)
    gateway = ScriptedGateway(FIRST, more, more)

    async with serving(gateway), paceline.AsyncClient(gateway.address, max_resumes=2) as client:
        with pytest.raises(Unavailable, match="gone"):
            await _events(client)

    assert [list(request.resume_token_ids) for request in gateway.requests] == [
        [],
        [4, 5],
        [4, 5, 9],
    ]


@pytest.mark.asyncio
async def test_a_stream_lost_after_its_end_shows_the_end_once() -> None:
    ended = Turn((started(), delta("Hel", 4, 5), finished()), error=LOST)
    gateway = ScriptedGateway(ended, Turn((started(), finished(), summary(2))))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        events = await _events(client)

    assert [type(event) for event in events] == [Started, Delta, Finished, Summary]


@pytest.mark.asyncio
async def test_the_end_of_every_output_is_shown() -> None:
    ends = (finished(index=1, matched="!"), finished(index=0), finished(index=2))
    gateway = ScriptedGateway(Turn((started(), *ends, summary(0))))

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        events = await _events(client, n=3)

    shown = [event for event in events if isinstance(event, Finished)]
    assert [(event.index, event.matched_stop) for event in shown] == [
        (1, "!"),
        (0, None),
        (2, None),
    ]


@pytest.mark.asyncio
async def test_several_outputs_and_other_errors_are_not_resumed() -> None:
    overloaded = Turn((started(),), error=Overloaded("full"))
    gateway = ScriptedGateway(FIRST, overloaded)

    async with serving(gateway), paceline.AsyncClient(gateway.address) as client:
        with pytest.raises(Unavailable):
            await _events(client, n=2)
        with pytest.raises(Overloaded):
            await _events(client)

    assert not gateway.requests[0].output.return_token_ids


@pytest.mark.asyncio
async def test_another_gateway_takes_over() -> None:
    first, second = ScriptedGateway(FIRST), ScriptedGateway(REST)

    async with serving(second):
        async with serving(first) as server:
            target = f"ipv4:{first.address},{second.address}"
            async with paceline.AsyncClient(target) as client:
                while not first.requests:
                    second.turns.append(REST)
                    stream = client.stream("hi")
                    events = [await anext(stream)]
                    if not first.requests:
                        await stream.aclose()
                await server.stop(0)
                events += [event async for event in stream]
        text = _text(events)
        second.turns.clear()

    assert text == "Hello"
    assert list(second.requests[-1].resume_token_ids) == [4, 5]


@pytest.mark.asyncio
async def test_the_blocking_client_resumes_alike() -> None:
    gateway = ScriptedGateway(FIRST, REST)

    def consume(target: str) -> list[Event]:
        with paceline.Client(target) as client:
            return list(client.stream("hi"))

    async with serving(gateway):
        events = await asyncio.to_thread(consume, gateway.address)

    assert _text(events) == "Hello"
    assert list(gateway.requests[1].resume_token_ids) == [4, 5]


def test_no_resume_begins_after_the_deadline() -> None:
    request = messages.GenerateRequest(text="hi")
    stream = ResumableStream(request, max_resumes=3, timeout_seconds=0.001)
    stream.take(started())

    assert stream.pause_before_resume(Unavailable("gone", retry_after_seconds=1)) is None


def test_an_error_before_the_start_is_left_to_the_channel() -> None:
    request = messages.GenerateRequest(text="hi")
    stream = ResumableStream(request, max_resumes=3, timeout_seconds=60)

    assert stream.pause_before_resume(Unavailable("gone")) is None


def test_the_callers_request_is_not_changed() -> None:
    request = messages.GenerateRequest(text="hi")
    stream = ResumableStream(request, max_resumes=3, timeout_seconds=60)
    stream.take(started())
    stream.take(delta("a", 1))

    assert request == messages.GenerateRequest(text="hi")


@pytest.mark.asyncio
async def test_the_key_and_the_certificate_are_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    gateway = ScriptedGateway(REST, REST)
    tls = authority.server(authority.identity("gateway"), mutual=True)
    shown = authority.dial(authority.identity("client"))

    def consume() -> str:
        with paceline.Client(gateway.address, api_key="k2", tls=shown) as client:
            client.models()
            return client.generate("hi").text

    async with serving(gateway, tls=tls):
        async with paceline.AsyncClient(gateway.address, api_key="k1", tls=shown) as client:
            await _events(client)
            await client.models()
            await client.tokenize("a")
        assert await asyncio.to_thread(consume) == "lo"

    assert gateway.authorizations == ["Bearer k1"] * 3 + ["Bearer k2"] * 2


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing"):
        paceline.Client("127.0.0.1:1", tls=paceline.DialTls(ca=tmp_path / "missing"))
