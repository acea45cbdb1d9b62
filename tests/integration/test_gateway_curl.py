"""A gateway answers tools that know it only through reflection."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.doubles.gateway_requests import PROMPT
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_verifier import expected_token_ids

pytestmark = pytest.mark.asyncio

BUF = Path(sys.executable).parent / "buf"


async def curl(address: str, rpc: str, request: object) -> list[dict[str, object]]:
    """Return the messages that ``buf curl`` prints, one JSON object after another."""
    process = await asyncio.create_subprocess_exec(
        *(BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge"),
        *("--data", json.dumps(request)),
        f"http://{address}/paceline.v1.GenerationService/{rpc}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    decoder, text, found = json.JSONDecoder(), output.decode(), []
    while text := text.lstrip():
        message, end = decoder.raw_decode(text)
        found.append(message)
        text = text[end:]
    return found


async def test_buf_curl_generates_and_streams(running: RunningGateway) -> None:
    address = running.gateway.address
    request = {
        "tokenIds": {"ids": PROMPT},
        "stopping": {"maxTokens": 6},
        "output": {"returnTokenIds": True},
    }

    (whole,) = await curl(address, "Generate", request)
    events = await curl(address, "StreamGenerate", {"request": request})

    outputs = whole["outputs"]
    assert isinstance(outputs, list)
    assert outputs[0]["tokenIds"] == expected_token_ids(PROMPT, 6)
    assert "started" in events[0]
    assert "summary" in events[-1]
