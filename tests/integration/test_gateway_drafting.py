"""The drafting policy through a whole gateway: what a verifier is told, what a client is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as verify
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import running_gateway
from tests.doubles.scripted_verifier import ScriptedVerifier, model_info, model_steps, serving

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


def asking(
    mode: messages.DraftingMode.ValueType = messages.DRAFTING_MODE_AUTO, max_tokens: int = 12
) -> messages.GenerateRequest:
    """Return a request with a drafting mode."""
    return messages.GenerateRequest(
        text="a",
        stopping=messages.StoppingOptions(max_tokens=max_tokens),
        drafting=messages.DraftingOptions(mode=mode),
    )


def loaded(num_running: int) -> verify.AttachResponse:
    """Return a load report."""
    return verify.AttachResponse(
        load=verify.LoadReport(num_running=num_running, estimated_gain=1.0)
    )


async def test_load_turns_drafting_off_and_on_for_running_requests(folder: Path) -> None:
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.02)
    async with (
        serving(verifier) as address,
        running_gateway(
            folder, address, max_running_to_draft=4, drafting_dwell_seconds=0.0
        ) as running,
    ):
        answering = asyncio.create_task(running.generate(asking(max_tokens=90)))
        await verifier.until(lambda seen: seen.starts)
        await verifier.send(loaded(9))
        await verifier.until(lambda seen: len(seen.set_draftings) == 1)
        await verifier.send(loaded(1))
        await verifier.until(lambda seen: len(seen.set_draftings) == 2)
        answer = await answering
        counters = running.gateway.generator.counters

    off, on = (change.drafting for change in verifier.set_draftings)
    assert off == types_pb2.DraftingPolicy(fallback=types_pb2.DRAFT_FALLBACK_LOAD)
    assert on == types_pb2.DraftingPolicy(pool="ngram")
    assert list(answer.speculation.fallbacks) == [types_pb2.DRAFT_FALLBACK_LOAD]
    assert answer.speculation.pool == "ngram"
    assert counters.value("draft_fallbacks", "load") == 1


async def test_off_tells_the_verifier_and_the_client_why(folder: Path) -> None:
    """B032."""
    verifier = ScriptedVerifier()
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        answer = await running.generate(asking(messages.DRAFTING_MODE_OFF))

    expected = types_pb2.DRAFT_FALLBACK_REQUESTED
    assert verifier.starts[0].drafting == types_pb2.DraftingPolicy(fallback=expected)
    assert list(answer.speculation.fallbacks) == [expected]
    assert answer.speculation.pool == ""


async def test_a_verifier_without_pools_is_served_and_the_cause_is_told(folder: Path) -> None:
    verifier = ScriptedVerifier(info=model_info(draft_pools=[]))
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        answer = await running.generate(asking(messages.DRAFTING_MODE_ON))

    assert list(answer.speculation.fallbacks) == [types_pb2.DRAFT_FALLBACK_NO_POOL]


async def test_a_fallback_that_the_verifier_met_is_counted_once_per_request(folder: Path) -> None:
    def script(start: verify.Start) -> list[verify.AttachResponse]:
        responses = list(model_steps()(start))
        for response in responses:
            response.results[0].fallback = types_pb2.DRAFT_FALLBACK_UNREACHABLE
        return responses

    verifier = ScriptedVerifier(script)
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        answer = await running.generate(asking())
        counters = running.gateway.generator.counters

    assert list(answer.speculation.fallbacks) == [types_pb2.DRAFT_FALLBACK_UNREACHABLE]
    assert counters.value("draft_fallbacks", "unreachable") == 1


async def test_a_pool_that_comes_back_is_seen_by_the_refresh(folder: Path) -> None:
    away = verify.DraftPool(name="ngram", cause=types_pb2.DRAFT_FALLBACK_DEMOTED)
    verifier = ScriptedVerifier(
        model_steps(), info=model_info(draft_pools=[away]), pause_seconds=0.02
    )
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        answering = asyncio.create_task(running.generate(asking(max_tokens=120)))
        await verifier.until(lambda seen: seen.starts)
        verifier.info = model_info()
        await verifier.until(lambda seen: seen.set_draftings)
        await answering

    assert verifier.starts[0].drafting.pool == ""
    assert verifier.set_draftings[0].drafting.pool == "ngram"
