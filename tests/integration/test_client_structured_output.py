"""Constraints asked for through the public clients hold on a real model, gateway and verifier."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import paceline
from paceline.cli.main import main
from paceline.errors import InvalidRequest
from paceline.generation_request import SamplingOptions
from tests.doubles.running_gateway import running_gateway
from tests.doubles.up_command import TINY_MODEL
from verify_service.server import VerifyServer, load
from verify_service.settings import VerifySettings

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": [1, 2]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}
GRAMMAR = 'start: "[" ("a" | "b") "]"'
PATTERN = r"[0-9]{3}-[xy]"
CHOICES = ("north", "south")
SAMPLING: SamplingOptions = {"temperature": 0.8, "seed": 5}
MAX_TOKENS = 400


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """Run gateway and verify service on the tiny model; yield the gateway's address."""
    settings = VerifySettings(model=TINY_MODEL, listen="127.0.0.1:0")
    server = VerifyServer(await asyncio.to_thread(load, settings), settings)
    port = await server.start()
    try:
        with capture_logs():
            async with running_gateway(TINY_MODEL, f"127.0.0.1:{port}") as running:
                yield running.gateway.address
    finally:
        await server.aclose()


async def test_each_constraint_holds_for_streams_and_whole_answers() -> None:
    """The async client streams, the blocking one in a thread asks for the whole."""
    async with served() as address, paceline.AsyncClient(address) as client:
        schema = await streamed(client, {"json_schema": SCHEMA})
        as_text = await streamed(client, {"json_schema": json.dumps(SCHEMA)})
        regex = await client.generate("x", regex=PATTERN, max_tokens=MAX_TOKENS, **SAMPLING)
        grammar = await client.generate("x", grammar=GRAMMAR, max_tokens=MAX_TOKENS, **SAMPLING)
        choice = await asyncio.to_thread(chosen, address)
        with pytest.raises(InvalidRequest) as refused:
            await client.generate("x", regex="(", max_tokens=MAX_TOKENS, **SAMPLING)

    assert json.loads(schema).keys() == {"ok", "size"}
    assert as_text == schema
    assert re.fullmatch(PATTERN, regex.text)
    assert grammar.text in {"[a]", "[b]"}
    assert choice in CHOICES
    assert refused.value.field.startswith("structured_output")


async def test_generate_takes_constraints_as_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps(SCHEMA))
    grammar.write_text(GRAMMAR)

    async with served() as address:
        by_schema = await told(capsys, address, "--json-schema", str(schema))
        by_grammar = await told(capsys, address, "--grammar", str(grammar))
        by_regex = await told(capsys, address, "--regex", PATTERN)
        by_choice = await told(capsys, address, "--choice", "north", "--choice", "south")

    assert json.loads(by_schema).keys() == {"ok", "size"}
    assert by_grammar in {"[a]", "[b]"}
    assert re.fullmatch(PATTERN, by_regex)
    assert by_choice in CHOICES


async def streamed(client: paceline.AsyncClient, constraint: paceline.GenerationOptions) -> str:
    """Return the text of a streamed answer."""
    asked: paceline.GenerationOptions = {**SAMPLING, **constraint, "max_tokens": MAX_TOKENS}
    events = [event async for event in client.stream("x", **asked)]
    return "".join(event.text for event in events if isinstance(event, paceline.Delta))


def chosen(address: str) -> str:
    """Return what the blocking client gets for a choice."""
    with paceline.Client(address) as client:
        return client.generate("x", choice=CHOICES, max_tokens=MAX_TOKENS, **SAMPLING).text


async def told(capsys: pytest.CaptureFixture[str], address: str, *flags: str) -> str:
    """Return what ``paceline generate`` prints."""
    command = ["generate", "--address", address, "--max-tokens", "400", "--seed", "5", *flags, "x"]
    capsys.readouterr()
    assert await asyncio.to_thread(main, command) == 0
    return capsys.readouterr().out.rstrip("\n")
