"""A gateway that is lost in the middle of a client's stream: another goes on, no token changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from paceline.events import Delta, Event, Started, Summary
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import running_gateway
from tests.doubles.scripted_verifier import ScriptedVerifier, serving

pytestmark = pytest.mark.asyncio

NUM_TOKENS = 40


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def _ids(events: list[Event]) -> list[int]:
    return [each for event in events if isinstance(event, Delta) for each in event.token_ids]


@pytest.mark.parametrize("num_seen", [1, 3, 7])
async def test_text_and_ids_are_those_of_an_undisturbed_stream(
    tmp_path: Path, num_seen: int
) -> None:
    folder = write_model_folder(tmp_path)
    verifier = ScriptedVerifier(pause_seconds=0.02)
    async with (
        serving(verifier) as address,
        running_gateway(folder, address) as first,
        running_gateway(folder, address) as second,
    ):
        gateways = {gateway.gateway.address: gateway.gateway for gateway in (first, second)}
        target = f"ipv4:{','.join(gateways)}"
        async with paceline.AsyncClient(target) as client:
            stream = client.stream(
                "hello", max_tokens=NUM_TOKENS, temperature=0.7, return_token_ids=True
            )
            events: list[Event] = [await anext(stream) for _ in range(1 + num_seen)]
            begun = events[0]
            assert isinstance(begun, Started)
            (serving_now,) = (
                gateway for gateway in gateways.values() if gateway.generator.admission.num_running
            )
            await serving_now.aclose()
            events += [event async for event in stream]
            undisturbed = await client.generate(
                "hello", max_tokens=NUM_TOKENS, temperature=0.7, seed=begun.sampling.seed
            )

    summary = events[-1]
    assert isinstance(summary, Summary)
    assert _ids(events) == list(undisturbed.token_ids)
    assert _text(events) == undisturbed.text
    assert summary.usage.completion_tokens == NUM_TOKENS
    assert [type(event) for event in events].count(Started) == 1
    assert len(verifier.starts) == 3
