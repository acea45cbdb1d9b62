"""What the command line says when TLS, or the lack of it, is why a server does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from paceline.cli.access import Access
from paceline.cli.doctor import examined
from paceline.cli.main import main
from paceline.cli.tls_hint import tls_hint
from paceline.serving import Server
from paceline.tls import DialTls, ServerTls
from tests.doubles.certificates import Authority

pytestmark = pytest.mark.asyncio

WANTS_CERTIFICATE = "give a client certificate (--certificate and --private-key) if it wants one"
CASES = {
    "plaintext to TLS": ("tls", (), "it speaks TLS; name its authority with --ca"),
    "plaintext to mutual TLS": ("mutual", (), "it speaks TLS; name its authority with --ca"),
    "no client certificate": ("mutual", ("ca",), WANTS_CERTIFICATE),
    "another authority": ("tls", ("other",), "see that its own is of --ca and for this host"),
    "a certificate of another authority": (
        "tls",
        ("other", "certificate"),
        "see that its certificate is of --ca",
    ),
    "TLS to plaintext": ("plaintext", ("ca",), "it speaks no TLS; leave --ca out"),
}


class Place:
    """Certificates, and a server that shows them."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.other = Authority(folder), Authority(folder / "other", "other")
        self.client = self.authority.identity("client")
        self._server = self.authority.identity("server")

    def tls(self, kind: str) -> ServerTls | None:
        """Return what the server shows and demands."""
        if kind == "plaintext":
            return None
        return self.authority.server(self._server, mutual=kind == "mutual")

    def flags(self, given: Sequence[str]) -> list[str]:
        """Return the flags of a command."""
        ca = self.other.ca if "other" in given else self.authority.ca
        own = ["--certificate", str(self.client.certificate)]
        own += ["--private-key", str(self.client.private_key)]
        return (["--ca", str(ca)] if given else []) + (own if "certificate" in given else [])


@asynccontextmanager
async def _listening(tls: ServerTls | None) -> AsyncIterator[str]:
    server = Server(["paceline.v1.GenerationService"])
    port = server.listen("127.0.0.1:0", tls)
    await server.start()
    await server.set_ready(True)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("command", ["generate", "doctor"])
async def test_a_handshake_that_fails_is_told_with_the_flag_that_mends_it(
    command: str, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, given, remedy = CASES[case]
    place = Place(tmp_path)

    async with _listening(place.tls(kind)) as address:
        words = ["--address", address, "hi"] if command == "generate" else ["--gateway", address]
        code = await asyncio.to_thread(main, [command, *words, *place.flags(given)])

    shown = capsys.readouterr()
    told = shown.err if command == "generate" else shown.out
    assert code == 1
    assert "does not answer: it speaks" in told
    assert remedy in told
    assert told.count("\n") == 1


async def test_where_the_handshake_is_not_at_fault_nothing_is_said_of_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    trusting = Access(tls=DialTls(place.authority.ca))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody = f"127.0.0.1:{listening.getsockname()[1]}"

    async with _listening(None) as address:
        plain = await asyncio.to_thread(tls_hint, address, Access())

    assert (plain, tls_hint(nobody, Access()), tls_hint(nobody, trusting)) == ("", "", "")
    assert tls_hint("unix:/tmp/socket", trusting) == ""


async def test_a_command_with_the_right_flags_is_not_bothered(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async with _listening(place.tls("mutual")) as address:
        own = place.client
        access = Access(tls=DialTls(place.authority.ca, own.certificate, own.private_key))
        findings = await examined([("gateway", address)], access)

    assert findings[0].cause == "answers and is ready"
