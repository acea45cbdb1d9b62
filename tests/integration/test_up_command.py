"""``paceline up`` with real services on the tiny model."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import paceline
from paceline.v1 import types_pb2
from tests.doubles.idle_drafter import Capabilities, drafter
from tests.doubles.up_command import TINY_MODEL, UpCommand, gone, up

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]

TINY = ("--model", str(TINY_MODEL))


async def test_line_serves_loses_its_drafter_gets_it_back_and_drains(tmp_path: Path) -> None:
    async with up(tmp_path, *TINY) as command:
        await command.says("ready at " + command.address)
        await command.says("drafting: pool ngram")
        hint = await command.says("try: paceline generate")
        assert command.address in hint
        before = await _generated(command)

        os.kill(command.services()["draft_service"], signal.SIGKILL)
        await command.says("serving without drafts: draft was ended by SIGKILL")
        without = await _generated(command)
        services = list(command.services().values())

        command.process.send_signal(signal.SIGTERM)
        assert await command.ends() == 0
        assert await gone(services)
    assert before == without


async def test_services_end_when_the_command_is_killed_and_mismatch_is_named(
    tmp_path: Path,
) -> None:
    ours = types_pb2.ProtocolRange(min_version=1, max_version=1)
    foreign = Capabilities(
        name="foreign", drafter="medusa", tokenizer_fingerprint="bb" * 32, protocol=ours
    )
    async with (
        drafter(foreign) as address,
        up(tmp_path, *TINY, "--draft", address) as command,
    ):
        await command.says("ready at")
        told = await command.says("serving without drafts")
        assert "mismatch" in told
        services = command.services()
        assert services.keys() == {"gateway", "verify_service"}

        command.process.kill()

        async with asyncio.timeout(5):
            assert await gone(list(services.values()))


async def test_unreachable_drafter_is_told_and_a_dead_verifier_ends_the_command(
    tmp_path: Path,
) -> None:
    async with up(tmp_path, *TINY, "--draft", "127.0.0.1:1") as command:
        await command.says("ready at")
        told = await command.says("serving without drafts")
        assert "127.0.0.1:1" in told
        assert "unreachable" in told
        assert await _generated(command)
        services = command.services()

        os.kill(services["verify_service"], signal.SIGKILL)

        assert await command.ends() == 1
        assert "paceline: error: verifier was ended by SIGKILL" in command.said[-2]
        assert await gone(list(services.values()))


async def test_model_that_cannot_be_loaded_is_one_line_and_code_2(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(TINY_MODEL, broken)
    for weights in broken.glob("*.safetensors"):
        weights.write_bytes(b"these are no weights")

    async with up(tmp_path / "logs", "--model", str(broken)) as command:
        assert await command.ends() == 2

    told = command.said[-2]
    assert told.startswith("paceline: error: verifier ended with code 2: ")
    assert str(broken) in told
    assert "Traceback" not in "".join(command.said)


async def test_drafter_with_a_model_gets_one_made_from_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    members = "--draft-args=--composite-members=onnx,ngram"

    async with up(tmp_path, *TINY, "--draft", "composite", members) as command:
        await command.says("drafting: pool composite (composite)")
        drafted = await _generation(command)
        command.process.send_signal(signal.SIGTERM)
        assert await command.ends() == 0

    assert drafted.speculation.num_accepted_draft_tokens > 0
    assert list((tmp_path / "cache").glob("tiny-draft-*/model.onnx"))


async def test_flag_that_a_service_does_not_know_is_named(tmp_path: Path) -> None:
    async with up(tmp_path, *TINY, "--gateway-args=--max-runing 3") as command:
        assert await command.ends() == 2

    assert "--max-runing" in command.said[-2]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--draft-args=--ngram-min-len 99",), "setting ngram_min_len"),
        (("--draft-args=--drafter crystal-ball",), "unknown drafter 'crystal-ball'; known: comp"),
    ],
)
async def test_draft_service_that_refuses_its_settings_ends_the_command(
    flags: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    async with up(tmp_path, *TINY, *flags) as command:
        assert await command.ends() == 2

    assert command.said[-2].startswith("paceline: error: draft ended with code 2: ")
    assert told in command.said[-2]
    assert "restarting" not in "".join(command.said)


async def _generated(command: UpCommand) -> tuple[int, ...]:
    return (await _generation(command)).token_ids


async def _generation(command: UpCommand) -> paceline.Generation:
    async with paceline.AsyncClient(command.address) as client:
        return await client.generate("def add(a, b):", max_tokens=24, temperature=0)


async def test_line_whose_gateway_asks_for_keys_serves_those_who_have_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"key-of-the-test-line").hexdigest()
    keys.write_text(f"keys:\n  - {{id: one, sha256: {digest}, tenant: team}}\n", encoding="utf-8")

    async with up(tmp_path, *TINY, "--gateway-args", f"--api-keys {keys}") as command:
        await command.says("ready at")
        await command.says("serving those who have a key")
        async with paceline.AsyncClient(command.address, api_key="key-of-the-test-line") as client:
            result = await client.generate("One, two,", max_tokens=4)

    assert result.text
