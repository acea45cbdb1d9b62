"""Settings that are taken up while a gateway runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from gateway.generation import PriorityClass
from gateway.live_settings import LIVE
from gateway.server import ConfigFile
from gateway.settings import GatewaySettings
from paceline.errors import Overloaded
from paceline.settings import load_settings
from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import (
    CALL_SECONDS,
    running_gateway,
    violated_fields,
)
from tests.doubles.scripted_verifier import ScriptedVerifier, serving, steps_of

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture
async def verifier() -> AsyncIterator[ScriptedVerifier]:
    """A verifier that says three tokens."""
    scripted = ScriptedVerifier(steps_of([5, 6, 7]))
    async with serving(scripted):
        yield scripted


async def _eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(CALL_SECONDS):
        while not condition():  # noqa: ASYNC110 the condition is on files and logs
            await asyncio.sleep(0.01)


async def test_settings_are_read_again_when_their_file_changes(
    folder: Path, tmp_path: Path, verifier: ScriptedVerifier
) -> None:
    """B094: each setting that is taken up has an effect."""
    other = ScriptedVerifier(steps_of([9]))
    path = tmp_path / "gateway.yaml"

    def write(*addresses: str, more: str = "") -> None:
        beside = tmp_path / "new.yaml"
        listed = ", ".join(f"'{address}'" for address in addresses)
        beside.write_text(f"verifiers: [{listed}]\nmodel: {folder}\nreload_seconds: 0.02\n{more}")
        beside.replace(path)

    def read() -> GatewaySettings:
        flags = ("--config", str(path), "--listen", "127.0.0.1:0")
        return load_settings(GatewaySettings, "gateway", flags)

    write(verifier.address)
    async with (
        serving(other),
        running_gateway(
            folder, verifier.address, config=ConfigFile(path, read), reload_seconds=0.02
        ) as running,
    ):
        generator = running.gateway.generator
        with capture_logs() as logs:
            write(other.address, more="max_prompt_characters: 3\ndrain_seconds: 1\n")
            await _eventually(
                lambda: [link.address for link in generator.verifiers.links] == [other.address]
            )
            await _eventually(lambda: generator.verifiers.is_ready)
        answer = await running.generate(messages.GenerateRequest(text="abc"))
        too_long = await running.failure(messages.GenerateRequest(text="abcd"))
        with capture_logs() as complaints:
            write("nonsense", more="max_prompt_characters: 9\n")
            await _eventually(lambda: "reload_refused" in [line["event"] for line in complaints])
        still = await running.failure(messages.GenerateRequest(text="abcd"))

    assert answer.usage.completion_tokens == 1
    assert violated_fields(too_long) == ["text"]
    assert violated_fields(still) == ["text"]
    restart = [line["setting"] for line in logs if line["event"] == "setting_needs_restart"]
    assert "drain_seconds" in restart
    assert "max_prompt_characters" not in restart
    assert len(complaints) == 1


async def test_a_sequence_stays_on_a_verifier_that_is_no_longer_named(
    folder: Path, tmp_path: Path, verifier: ScriptedVerifier
) -> None:
    verifier.pause_seconds = 0.15
    verifier.script = steps_of(list(range(5, 14)))
    other = ScriptedVerifier(steps_of([9]))
    async with serving(other), running_gateway(folder, verifier.address) as running:
        generator = running.gateway.generator
        request = messages.GenerateRequest(
            text="a", output=messages.OutputOptions(return_token_ids=True)
        )
        asked = asyncio.ensure_future(running.generate(request))
        await verifier.until(lambda seen: seen.starts)
        running.gateway.live.apply(
            running.gateway.settings.model_copy(update={"verifiers": (other.address,)})
        )
        answer = await asked
        await _eventually(lambda: len(generator.verifiers.links) == 1)

    assert list(answer.outputs[0].token_ids) == list(range(5, 14))
    assert other.starts == []


async def test_a_verifier_that_is_named_again_keeps_the_policy_of_its_new_sequences(
    folder: Path, verifier: ScriptedVerifier
) -> None:
    """Its old link ends while the new one, at the same address, has sequences."""
    verifier.pause_seconds = 0.1
    verifier.script = steps_of(list(range(5, 14)), width=1)
    async with running_gateway(folder, verifier.address) as running:
        settings, live = running.gateway.settings, running.gateway.live
        links = running.gateway.generator.verifiers.links
        early = asyncio.ensure_future(running.generate(messages.GenerateRequest(text="a")))
        await verifier.until(lambda seen: seen.starts)
        live.apply(settings.model_copy(update={"verifiers": ("127.0.0.1:9",)}))
        await _eventually(lambda: len(links) == 2)
        live.apply(settings)
        await _eventually(lambda: any(link.is_usable for link in links))
        verifier.script = steps_of(list(range(5, 60)), width=1)
        late = asyncio.ensure_future(running.generate(messages.GenerateRequest(text="b")))
        await verifier.until(lambda seen: len(seen.starts) == 2)
        await early
        await _eventually(lambda: len(links) == 1)
        verifier.info.draft_pools[0].available = False
        await verifier.until(lambda seen: seen.set_draftings)
        late.cancel()


async def test_the_policy_keeps_nothing_of_verifiers_that_are_gone(
    folder: Path, verifier: ScriptedVerifier
) -> None:
    """Pods come with new addresses for ever."""
    others = [ScriptedVerifier(steps_of([9])) for _ in range(3)]
    async with running_gateway(folder, verifier.address) as running:
        settings, live = running.gateway.settings, running.gateway.live
        generator = running.gateway.generator
        for other in others:
            async with serving(other):
                addresses = (verifier.address, other.address)
                live.apply(settings.model_copy(update={"verifiers": addresses}))
                await _eventually(
                    lambda: sum(link.is_usable for link in generator.verifiers.links) == 2
                )
                live.apply(settings)
                await _eventually(lambda: len(generator.verifiers.links) == 1)
        await asyncio.sleep(0.1)

        assert {address for address, _ in generator.controller.gates()} == {verifier.address}


CHANGED: dict[str, object] = {
    "verifiers": ("127.0.0.1:9",),
    "default_pool": "other",
    "max_running": 1,
    "max_waiting": 0,
    "default_deadline_seconds": 7.0,
    "default_max_tokens": 8,
    "max_prompt_characters": 9,
    "max_bytes_per_token": 4,
    "max_running_to_draft": 10,
    "min_acceptance_length": 1.1,
    "drafting_dwell_seconds": 12.0,
    "probe_interval_seconds": 13.0,
    "max_failovers": 14,
    "failover_wait_seconds": 15.0,
    "failover_burst": 1,
    "failovers_per_second": 0.001,
}


async def test_every_live_setting_arrives_where_it_acts(
    folder: Path, verifier: ScriptedVerifier
) -> None:
    """B094: and none of them asks for a restart."""
    assert CHANGED.keys() == LIVE
    async with running_gateway(folder, verifier.address) as running:
        generator = running.gateway.generator
        with capture_logs() as logs:
            running.gateway.live.apply(running.gateway.settings.model_copy(update=CHANGED))
            await _eventually(
                lambda: [link.address for link in generator.verifiers.links] == ["127.0.0.1:9"]
            )
        room = await generator.admission.acquire(1, PriorityClass.STANDARD)
        with pytest.raises(Overloaded):
            await generator.admission.acquire(1, PriorityClass.STANDARD)
        room.release()

    controller: Any = generator.controller
    assert (generator.limits.default_max_tokens, generator.limits.max_prompt_characters) == (8, 9)
    assert generator.limits.max_bytes_per_token == 4
    assert (generator.budget.spend(), generator.budget.spend() > 0) == (0, True)
    assert (generator.failover.max_failovers, generator.failover.wait_seconds) == (14, 15.0)
    assert controller._default_pool == "other"
    assert controller._limits.max_running_to_draft == 10
    assert controller._limits.min_acceptance_length == 1.1
    assert controller._limits.min_dwell_seconds == 12.0
    assert controller._limits.probe_interval_seconds == 13.0
    assert "setting_needs_restart" not in {line["event"] for line in logs}
