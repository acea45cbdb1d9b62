from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from paceline.cli.address import bindable_address
from paceline.cli.checks import (
    Finding,
    Level,
    Tokenizer,
    compare_tokenizers,
    examine_draft_service,
    examine_gateway,
    examine_verifier,
    guarded,
)
from paceline.cli.doctor import examined
from paceline.cli.main import main
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from tests.doubles.idle_drafter import Capabilities, drafter
from tests.doubles.scripted_gateway import ScriptedGateway, serving
from tests.doubles.scripted_verifier import ScriptedVerifier, model_info
from tests.doubles.scripted_verifier import serving as serving_verifier

pytestmark = pytest.mark.asyncio


def _model(**fields: object) -> messages.Model:
    pool = messages.ModelDraftPool(name="ngram", available=True, drafter="ngram")
    model = messages.Model(
        name="tiny", tokenizer_fingerprint="aa", num_verifiers=1, num_ready_verifiers=1
    )
    model.draft_pools.append(pool)
    model.MergeFrom(messages.Model(**fields))  # type: ignore[arg-type]  # scripted
    return model


async def test_healthy_gateway_has_nothing_wrong() -> None:
    gateway = ScriptedGateway()
    gateway.models.append(_model())

    async with serving(gateway):
        findings = await _findings(gateway.address)

    assert {finding.level for finding in findings} == {Level.FINE}
    assert any("1 of 1 verifiers ready" in finding.cause for finding in findings)


async def test_without_an_address_the_gateway_of_the_environment_is_examined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = ScriptedGateway()
    gateway.models.append(_model())

    async with serving(gateway):
        monkeypatch.setenv("PACELINE_ADDRESS", gateway.address)
        assert await asyncio.to_thread(main, ["doctor"]) == 0

    assert f"gateway {gateway.address}" in capsys.readouterr().out


async def test_gateway_that_is_not_ready_is_wrong() -> None:
    gateway = ScriptedGateway()

    async with serving(gateway, ready=False):
        (finding,) = await _findings(gateway.address)

    assert finding.level is Level.WRONG
    assert "not ready" in finding.cause


async def test_address_where_nobody_listens_is_wrong() -> None:
    (finding,) = await _findings(bindable_address("127.0.0.1:0", "--gateway"))

    assert finding.level is Level.WRONG
    assert "does not answer" in finding.cause


async def test_draft_pool_that_does_not_match_is_named_with_its_fix() -> None:
    pool = messages.ModelDraftPool(
        name="medusa", cause=types_pb2.DRAFT_FALLBACK_MISMATCH, detail="tokenizer bb, not aa"
    )
    gateway = ScriptedGateway()
    gateway.models.append(_model(draft_pools=[pool], num_verifiers=3))

    async with serving(gateway):
        findings = await _findings(gateway.address)

    wrong = [finding for finding in findings if finding.level is Level.WRONG]
    assert "medusa cannot be used: mismatch: tokenizer bb, not aa" in wrong[0].cause
    assert "tokenizer" in wrong[0].fix
    assert any(finding.level is Level.WARNING for finding in findings)


async def test_other_server_at_the_address_is_no_paceline_server() -> None:
    plain = grpc.aio.server()
    port = plain.add_insecure_port("127.0.0.1:0")
    await plain.start()

    (finding,) = await _findings(f"127.0.0.1:{port}")
    await plain.stop(0)

    assert "no Paceline server" in finding.cause


async def test_gateway_address_of_a_draft_service_is_called_by_its_name() -> None:
    async with drafter(Capabilities()) as address:
        findings = await _findings(address)

    assert findings[-1].level is Level.WRONG
    assert findings[-1].cause == "what listens there is a draft service"


async def test_protocol_that_is_not_ours_is_wrong() -> None:
    newer = types_pb2.ProtocolRange(min_version=2, max_version=9)

    async with drafter(Capabilities(name="new", protocol=newer)) as address:
        entries = [entry async for entry in examine_draft_service(address)]

    wrong = [e for e in entries if isinstance(e, Finding) and e.level is Level.WRONG]
    assert "speaks protocol 2 to 9" in wrong[0].cause


async def test_whole_deployment_with_two_tokenizers_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = types_pb2.ProtocolRange(min_version=1, max_version=1)
    capabilities = Capabilities(name="d", tokenizer_fingerprint="bb", protocol=ours)
    gateway = ScriptedGateway()
    gateway.models.append(_model())

    async with serving(gateway), drafter(capabilities) as address, asyncio.timeout(20):
        findings = await examined([("gateway", gateway.address), ("draft", address)])

    assert findings[-1].subject == "tokenizers"
    assert findings[-1].level is Level.WRONG
    assert f"bb: draft service {address}" in capsys.readouterr().out


async def test_same_tokenizers_are_fine_and_one_is_no_comparison() -> None:
    same = [Tokenizer("a", "aa"), Tokenizer("b", "aa")]

    comparison = compare_tokenizers(same)

    assert comparison is not None
    assert comparison.level is Level.FINE
    assert compare_tokenizers(same[:1]) is None


async def _findings(address: str) -> list[Finding]:
    report = guarded(examine_gateway(address), f"gateway {address}")
    return [entry async for entry in report if isinstance(entry, Finding)]


async def test_a_verifier_taken_for_a_gateway_is_called_by_its_name() -> None:
    async with serving_verifier(ScriptedVerifier()) as address:
        findings = [entry async for entry in guarded(examine_gateway(address), "gateway")]

    *_, last = findings
    assert isinstance(last, Finding)
    assert (last.level, last.cause) == (Level.WRONG, "what listens there is a verifier")
    assert "--verifier" in last.fix


async def test_a_verifier_is_described_with_its_pools_and_tokenizer() -> None:
    verifier = ScriptedVerifier(info=model_info(tokenizer_fingerprint="ab"))
    async with serving_verifier(verifier) as address:
        entries = [entry async for entry in examine_verifier(address)]

    told = [entry.cause for entry in entries if isinstance(entry, Finding)]
    assert "scripted on engine scripted, version 1" in told
    assert "draft pool ngram can be used (drafter ngram)" in told
    assert [entry.fingerprint for entry in entries if isinstance(entry, Tokenizer)] == ["ab"]
