"""Encrypted connections: who gets in, and certificates that are replaced while a server runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from gateway.settings import GatewaySettings
from paceline.channels import open_link
from paceline.errors import ConfigurationError
from paceline.serving import Server
from paceline.settings import load_settings
from paceline.tls import DialTls, ServerTls, channel_credentials, server_credentials
from tests.doubles.certificates import Authority, Identity

SERVING = health_pb2.HealthCheckResponse.SERVING
FLAGS = ("--verifiers", "127.0.0.1:1", "--model", "m")


@asynccontextmanager
async def _served(tls: ServerTls) -> AsyncIterator[str]:
    server = Server(["paceline.v1.VerifyService"])
    address = f"127.0.0.1:{server.listen('127.0.0.1:0', tls)}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


async def _answers(address: str, tls: DialTls | None) -> bool:
    """Return whether a new connection gets an answer."""
    async with open_link(address, tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
    return bool(answer.status == SERVING)


@pytest.mark.asyncio
async def test_a_server_with_a_certificate_answers_only_encrypted_and_trusting_clients(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path / "other")

    async with _served(authority.server(authority.identity("server"))) as address:
        assert await _answers(address, authority.dial())
        assert not await _answers(address, None)
        assert not await _answers(address, stranger.dial())


@pytest.mark.asyncio
async def test_mutual_tls_admits_only_certificates_of_its_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path / "other")
    tls = authority.server(authority.identity("server"), mutual=True)
    foreign = stranger.identity("client")

    async with _served(tls) as address:
        assert await _answers(address, authority.dial(authority.identity("client")))
        assert not await _answers(address, authority.dial())
        shown = DialTls(authority.ca, foreign.certificate, foreign.private_key)
        assert not await _answers(address, shown)


@pytest.mark.asyncio
async def test_the_name_that_a_certificate_must_show_can_be_another(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async with _served(authority.server(authority.identity("verifier"))) as address:
        assert await _answers(address, authority.dial(server_name="verifier"))
        assert not await _answers(address, authority.dial(server_name="gateway"))


@pytest.mark.asyncio
async def test_a_replaced_certificate_is_shown_to_the_next_connection(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    identity = old.identity("server")

    with capture_logs() as logs:
        async with _served(old.server(identity)) as address:
            assert await _answers(address, old.dial())
            identity.replace_by(new.identity("server"))
            assert await _answers(address, new.dial())
            assert not await _answers(address, old.dial())

    assert [line["event"] for line in logs].count("certificate_changed") == 1


@pytest.mark.asyncio
async def test_a_replaced_client_authority_decides_about_the_next_connection(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    tls = old.server(old.identity("server"), mutual=True)
    former, current = old.identity("client"), new.identity("client")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.ca.read_bytes())

    def shown(identity: Identity) -> DialTls:
        return DialTls(trusted, identity.certificate, identity.private_key)

    async with _served(tls) as address:
        assert await _answers(address, shown(former))
        assert not await _answers(address, shown(current))
        old.ca.write_bytes(new.ca.read_bytes())
        assert await _answers(address, shown(current))
        assert not await _answers(address, shown(former))


@pytest.mark.asyncio
async def test_a_bad_replacement_leaves_the_old_certificate_and_is_logged_once(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    identity = authority.identity("server")

    with capture_logs() as logs:
        async with _served(authority.server(identity)) as address:
            assert await _answers(address, authority.dial())
            identity.private_key.write_text("no key")
            assert await _answers(address, authority.dial())
            assert await _answers(address, authority.dial())

    refused = [line for line in logs if line["event"] == "certificate_refused"]
    assert len(refused) == 1
    assert str(identity.private_key) in refused[0]["detail"]


@pytest.mark.parametrize("damage", ["encrypted", "missing", "no_pem", "of_another"])
def test_unusable_files_are_refused_in_one_line_that_names_them(
    tmp_path: Path, damage: str
) -> None:
    authority = Authority(tmp_path)
    password = b"secret" if damage == "encrypted" else None
    identity = authority.identity("server", password=password)
    key = identity.private_key
    if damage == "missing":
        key.unlink()
    elif damage == "no_pem":
        key.write_text("nothing")
    elif damage == "of_another":
        key.write_bytes(authority.identity("other").private_key.read_bytes())

    with pytest.raises(ConfigurationError) as refused:
        server_credentials(authority.server(identity))
    with pytest.raises(ConfigurationError):
        channel_credentials(authority.dial(identity))

    assert str(key) in refused.value.message
    assert "\n" not in refused.value.message
    assert ("encrypted" in refused.value.message) == (damage == "encrypted")


def test_an_authority_without_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_text("nothing")

    with pytest.raises(ConfigurationError, match="no PEM certificate"):
        channel_credentials(DialTls(path))
    with pytest.raises(ConfigurationError, match="private key"):
        channel_credentials(DialTls(None, certificate=path))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--tls-certificate", "c"), "tls_private_key"),
        (("--tls-client-ca", "c"), "tls_certificate"),
        (("--link-certificate", "c"), "link_private_key"),
        (("--link-server-name", "c"), "link_ca"),
        (("--jwks", "c"), "jwt_audience"),
    ],
)
def test_settings_that_would_have_no_effect_alone_are_refused(
    flags: tuple[str, ...], named: str
) -> None:
    """B094: a setting without effect is an error."""
    with pytest.raises(ConfigurationError, match=named) as refused:
        load_settings(GatewaySettings, "gateway", (*FLAGS, *flags))

    assert "\n" not in refused.value.message


def test_settings_name_the_files_of_both_directions() -> None:
    flags = ("--tls-certificate", "a", "--tls-private-key", "b", "--tls-client-ca", "c")
    links = ("--link-ca", "d", "--link-certificate", "e", "--link-private-key", "f")

    settings = load_settings(GatewaySettings, "gateway", (*FLAGS, *flags, *links))
    plain = load_settings(GatewaySettings, "gateway", FLAGS)

    assert settings.server_tls == ServerTls(Path("a"), Path("b"), Path("c"))
    assert settings.link_tls == DialTls(Path("d"), Path("e"), Path("f"))
    assert plain.server_tls is None
    assert plain.link_tls is None


@pytest.mark.asyncio
async def test_handshakes_of_many_clients_at_once_see_one_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.identity("server")

    async with _served(authority.server(identity)) as address:
        identity.replace_by(authority.identity("again"))
        answers = await asyncio.gather(*(_answers(address, authority.dial()) for _ in range(8)))

    assert all(answers)
