"""All three links under mutual TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from draft_service.registry import create_drafter
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from paceline.tls import DialTls
from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.certificates import Authority
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import CALL_SECONDS, RunningGateway, running_gateway
from tests.doubles.running_verifier import POOL, make_engine
from tests.doubles.scripted_verifier import ScriptedVerifier, serving, steps_of
from verify_service.draft_link import DraftLink
from verify_service.engine.sampling import Fallback

pytestmark = pytest.mark.asyncio


async def _eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(CALL_SECONDS):
        while not condition():  # noqa: ASYNC110 a link announces nothing
            await asyncio.sleep(0.01)


async def test_client_link_and_verifier_link_are_both_encrypted(
    tmp_path: Path,
) -> None:
    folder = write_model_folder(tmp_path / "model")
    authority = Authority(tmp_path)
    gateway, client = authority.identity("gateway"), authority.identity("client")
    tls = authority.server(authority.identity("verifier"), mutual=True)
    settings: dict[str, Any] = {
        "tls_certificate": gateway.certificate,
        "tls_private_key": gateway.private_key,
        "tls_client_ca": authority.ca,
        "link_ca": authority.ca,
        "link_certificate": gateway.certificate,
        "link_private_key": gateway.private_key,
    }
    credentials = grpc.ssl_channel_credentials(
        authority.ca.read_bytes(), client.private_key.read_bytes(), client.certificate.read_bytes()
    )
    async with (
        serving(ScriptedVerifier(steps_of([5, 6])), tls=tls) as address,
        running_gateway(folder, address, **settings) as running,
        grpc.aio.secure_channel(running.gateway.address, credentials) as channel,
    ):
        encrypted = RunningGateway(running.gateway, type(running.stub)(channel))
        answer = await encrypted.generate(messages.GenerateRequest(text="a"))
        plain = await running.failure(messages.GenerateRequest(text="a"))

    assert answer.usage.completion_tokens == 2
    assert plain.code() is grpc.StatusCode.UNAVAILABLE


async def _link(address: str, tls: DialTls | None) -> DraftLink:
    engine = make_engine()
    link = DraftLink(POOL, address, engine.info, engine.apply, tls=tls)
    link.start()
    return link


async def test_the_draft_link_is_encrypted_and_reads_its_files_at_each_connection(
    tmp_path: Path,
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path / "other")
    server, client = authority.identity("draft"), stranger.identity("verifier")
    settings = DraftSettings(
        listen="127.0.0.1:0",
        tls_certificate=server.certificate,
        tls_private_key=server.private_key,
        tls_client_ca=authority.ca,
    )
    shown = DialTls(authority.ca, client.certificate, client.private_key)
    async with running_server(settings, create_drafter(settings)) as draft:
        plain, encrypted = await _link(draft.address, None), await _link(draft.address, shown)
        try:
            await _eventually(lambda: "not connected" not in encrypted.status.detail)
            refused = encrypted.status.cause
            client.replace_by(authority.identity("verifier"))
            await _eventually(lambda: encrypted.status.cause is None)
            assert refused is Fallback.UNREACHABLE
            assert plain.status.cause is Fallback.UNREACHABLE
        finally:
            await plain.aclose()
            await encrypted.aclose()


async def test_files_that_cannot_be_used_leave_the_pool_down_with_the_cause(
    tmp_path: Path,
) -> None:
    link = await _link("127.0.0.1:1", DialTls(tmp_path / "missing.crt"))
    try:
        await _eventually(lambda: "missing.crt" in link.status.detail)
        assert link.status.cause is Fallback.UNREACHABLE
    finally:
        await link.aclose()
