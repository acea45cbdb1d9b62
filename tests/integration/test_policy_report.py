"""The drafting policy as ``paceline doctor --policy`` shows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from paceline.cli.access import Access
from paceline.cli.address import bindable_address
from paceline.cli.checks import Finding, Level
from paceline.cli.doctor import examined
from paceline.cli.main import main
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2, verify_service_pb2
from tests.doubles.certificates import Authority
from tests.doubles.credentials import write_keys
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import running_gateway
from tests.doubles.scripted_verifier import ScriptedVerifier, model_info, serving

pytestmark = pytest.mark.asyncio


async def test_the_policy_is_told_per_verifier_and_pool_with_its_counts(tmp_path: Path) -> None:
    admin = bindable_address("127.0.0.1:0", "--admin-listen")
    folder = write_model_folder(tmp_path)
    async with (
        serving(ScriptedVerifier()) as address,
        running_gateway(folder, address, admin_listen=admin) as running,
    ):
        off = messages.DraftingOptions(mode=messages.DRAFTING_MODE_OFF)
        await running.generate(messages.GenerateRequest(text="a", drafting=off))
        await running.generate(messages.GenerateRequest(text="a"))
        running.gateway.generator.counters.increment("draft_fallbacks", "LOAD", by=3)
        findings = await examined([("policy", admin)])

    told = [finding.cause for finding in findings]
    assert {finding.level for finding in findings} == {Level.FINE}
    assert f"{address} pool ngram may draft" in told
    assert "requests that name no pool draft from the pool that is best for their workload" in told
    assert any(f"{address} workload text pool ngram: the best" in cause for cause in told)
    assert any("pool choices so far: ngram default 1" in cause for cause in told)
    assert any("draft fallbacks so far" in cause and "LOAD 3" in cause for cause in told)


async def test_a_pool_that_is_away_and_a_refused_file_are_wrong(tmp_path: Path) -> None:
    admin = bindable_address("127.0.0.1:0", "--admin-listen")
    routing = tmp_path / "routing.yaml"
    _write(routing, "pools: {ngram: {address: 'd:1', weight: 2}}")
    away = verify_service_pb2.DraftPool(name="ngram", cause=types_pb2.DRAFT_FALLBACK_UNREACHABLE)
    verifier = ScriptedVerifier(info=model_info(draft_pools=[away]))
    async with (
        serving(verifier) as address,
        running_gateway(
            write_model_folder(tmp_path), address, admin_listen=admin, routing=routing
        ) as running,
    ):
        await running.generate(messages.GenerateRequest(text="a"))
        weighed = await examined([("policy", admin)])
        _write(routing, "pools: {ngram: {weight: 2}}")
        refused = await _until(admin, is_wrong=True)
        _write(routing, "default_pool: ngram\npools: {ngram: {address: 'd:1'}}")
        await _until(admin, is_wrong=False)
        named = await examined([("policy", admin)])

    (down,) = [finding for finding in weighed if finding.level is Level.WRONG]
    assert down.cause == f"{address} pool ngram cannot be used: unreachable"
    assert "pools.ngram.address: is missing" in refused[0].cause
    assert any("by the routing file's weights: ngram 2" in each.cause for each in weighed)
    assert any("ngram (the routing file's default_pool)" in each.cause for each in named)


async def test_the_cause_comes_with_the_limits_that_it_is_about(tmp_path: Path) -> None:
    admin = bindable_address("127.0.0.1:0", "--admin-listen")
    scripted = ScriptedVerifier(pause_seconds=0.02)
    async with (
        serving(scripted) as address,
        running_gateway(
            write_model_folder(tmp_path), address, admin_listen=admin, max_running_to_draft=1
        ) as running,
        asyncio.TaskGroup() as group,
    ):
        limits = messages.StoppingOptions(max_tokens=150)
        for _ in range(2):
            group.create_task(running.generate(messages.GenerateRequest(text="a", stopping=limits)))
        async with asyncio.timeout(5):
            await scripted.until(lambda verifier: len(verifier.starts) == 2)
        findings = await examined([("policy", admin)])

    (told,) = [finding.cause for finding in findings if "does not draft" in finding.cause]
    assert told.startswith(f"{address} pool ngram does not draft: load (")
    assert told.endswith("run now, max_running_to_draft is 1; it comes back at 1)")


async def _until(admin: str, *, is_wrong: bool) -> list[Finding]:
    """Wait until the routing file is refused, or no longer; return what is told of it."""
    for _ in range(50):
        findings = await examined([("policy", admin)])
        told = [finding for finding in findings if finding.cause.startswith("routing:")]
        if bool(told) == is_wrong:
            return told
        await asyncio.sleep(0.1)
    raise TimeoutError


async def test_an_address_that_is_no_admin_port_is_wrong_and_says_what_to_do() -> None:
    nobody = bindable_address("127.0.0.1:0", "--policy")

    (finding,) = await examined([("policy", nobody)])

    assert finding.level is Level.WRONG
    assert finding.cause == "nothing listens there"
    assert finding.fix == "start the gateway with --admin-listen, or correct the address"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "has no policy report (HTTP 404)"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "answers with no policy report"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "answers with no policy report"),
        (b"\x00\x00\x06\x04\r\n", "does not speak HTTP"),
    ],
)
async def test_what_is_no_admin_port_is_told_in_plain_words(answer: bytes, cause: str) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (finding,) = await examined([("policy", f"127.0.0.1:{port}")])

    assert finding.level is Level.WRONG
    assert cause in finding.cause
    assert "--admin-listen" in finding.fix


async def test_doctor_and_generate_show_key_and_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    server, client = authority.identity("gateway"), authority.identity("client")
    keys = write_keys(tmp_path / "keys.yaml", {"pk-cli": {"id": "cli", "tenant": "t"}})
    key_file = tmp_path / "key"
    _write(key_file, "pk-cli\n")
    flags = ["--ca", str(authority.ca), "--certificate", str(client.certificate)]
    flags += ["--private-key", str(client.private_key)]
    async with (
        serving(ScriptedVerifier()) as address,
        running_gateway(
            write_model_folder(tmp_path / "model"),
            address,
            api_keys=keys,
            tls_certificate=server.certificate,
            tls_private_key=server.private_key,
            tls_client_ca=authority.ca,
        ) as running,
    ):
        here = running.gateway.address
        doctor = ["doctor", "--gateway", here, *flags]
        with_file = [*doctor, "--api-key-file", str(key_file)]
        generate = ["generate", "--address", here, "hi", "--max-tokens", "2", *flags]
        assert await asyncio.to_thread(main, with_file) == 0
        assert await asyncio.to_thread(main, doctor) == 1
        monkeypatch.setenv("PACELINE_API_KEY", "pk-cli")
        assert await asyncio.to_thread(main, generate) == 0
        assert await asyncio.to_thread(main, doctor) == 0

    assert "pk-cli" not in "".join(capsys.readouterr())


async def test_flags_without_effect_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """B094."""
    assert main(["doctor", "--certificate", "c", "--private-key", "k"]) == 2
    assert "--ca" in capsys.readouterr().err


async def test_without_access_everything_stays_plain() -> None:
    findings: list[Finding] = await examined([("gateway", "127.0.0.1:1")], Access())

    assert findings[0].level is Level.WRONG


def _write(path: Path, text: str) -> None:
    path.write_text(text)
