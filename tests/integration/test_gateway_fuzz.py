"""Thousands of hostile messages: each is answered with the right status, nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.message import DecodeError
from structlog.testing import capture_logs

from paceline.channels import MAX_MESSAGE_BYTES
from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.credentials import bearer, write_keys
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import RunningGateway, reason, running_gateway
from tests.doubles.scripted_verifier import ScriptedVerifier, serving, steps_of

pytestmark = pytest.mark.asyncio

NUM_AT_A_TIME = 16
MARK = "the-secret-of-the-prompt"
KEY = "pk-fuzz-7777"
PREFIX = "/paceline.v1.GenerationService/"
UNARY = ("Generate", "GetModel", "ListModels", "Tokenize")
REFUSED = grpc.StatusCode.INVALID_ARGUMENT
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
}


def valid(rng: random.Random) -> messages.GenerateRequest:
    """Return a request that could be served, every kind of field set."""
    request = messages.GenerateRequest(text=MARK, session_id="s", cache_salt="c")
    request.sampling.temperature = rng.random()
    request.sampling.logit_bias[3] = 1.0
    request.stopping.max_tokens = 3
    request.stopping.stop.append("stop")
    request.drafting.pool = "ngram"
    request.metadata["k"] = "v"
    return request


def noise(rng: random.Random) -> bytes:
    """Return bytes of no structure."""
    return rng.randbytes(rng.randrange(1, 200))


def mutated(rng: random.Random) -> bytes:
    """Return a request with some bytes flipped."""
    content = bytearray(valid(rng).SerializeToString())
    for _ in range(rng.randrange(1, 6)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content)


def cut(rng: random.Random) -> bytes:
    """Return the beginning of a request."""
    content = valid(rng).SerializeToString()
    return content[: rng.randrange(1, len(content))]


def no_utf8(rng: random.Random) -> bytes:
    """Return a request whose text is not UTF-8."""
    broken = rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
    field = rng.choice([b"\x0a", b"\x12", b"\x1a", b"\x82\x01", b"\x8a\x01"])
    return field + bytes([len(broken)]) + broken


def wrong_type(rng: random.Random) -> bytes:
    """Return known field numbers with other wire types."""
    return bytes(
        byte
        for _ in range(rng.randrange(1, 8))
        for byte in (rng.randrange(1, 19) << 3 | rng.choice((0, 5)), *rng.randbytes(4))
    )


def huge_field(rng: random.Random) -> bytes:
    """Return a request with one field far beyond its limit."""
    request = valid(rng)
    match rng.randrange(6):
        case 0:
            request.stopping.stop.extend(["x"] * 5000)
        case 1:
            request.metadata.update({str(number): "v" for number in range(500)})
        case 2:
            request.token_ids.ids.extend([2**32 - 1] * 5000)
        case 3:
            request.session_id = "s" * 50_000
        case 4:
            request.text = MARK * 10_000
        case _:
            request.sampling.logit_bias.update(dict.fromkeys(range(5000), 1.0))
    return request.SerializeToString()


def deep_chat(rng: random.Random) -> bytes:
    """Return a conversation that is long or in an order that the template refuses."""
    request = messages.GenerateRequest()
    for _ in range(rng.choice((3, 300, 5000))):
        entry = request.chat.messages.add()
        entry.role = rng.choice(("system", "user", "assistant", "root"))
        entry.content = rng.choice(("{{ 7 * 7 }}", "{% for x in range(9) %}", MARK, "\0", ""))
    return request.SerializeToString()


def nested(rng: random.Random) -> bytes:
    """Return unknown groups and messages nested beyond what a parser takes."""
    return b"\xa3\x1f" * rng.randrange(1, 500)


KINDS = (noise, mutated, cut, no_utf8, wrong_type, huge_field, deep_chat, nested)


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that asks for a key."""
    keys = write_keys(tmp_path / "keys.yaml", {KEY: {"id": "fuzz", "tenant": "t"}})
    folder = write_model_folder(tmp_path / "model")
    async with (
        serving(ScriptedVerifier(steps_of([5, 6, 7]))) as address,
        running_gateway(folder, address, api_keys=keys, max_prompt_characters=50_000) as gateway,
    ):
        yield gateway


def _unary(channel: grpc.aio.Channel, rpc: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(PREFIX + rpc)


async def _code(channel: grpc.aio.Channel, rpc: str, content: bytes, key: str) -> grpc.StatusCode:
    try:
        if rpc == "StreamGenerate":
            stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
            stream = channel.unary_stream(PREFIX + rpc)
            async for _ in stream(content, timeout=30, metadata=bearer(key)):
                pass
        else:
            await _unary(channel, rpc)(content, timeout=30, metadata=bearer(key))
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _hostile(count: int) -> Iterator[tuple[str, str, bytes]]:
    rng = random.Random(20260601)  # noqa: S311
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        rpc = rng.choice((*UNARY, "Generate", "StreamGenerate"))
        content = kind(rng)
        if rpc == "StreamGenerate" and rng.random() < 0.5:
            length = len(content)
            content = b"\x0a" + bytes(_varint(length)) + content
        yield kind.__name__, rpc, content


def _varint(number: int) -> Iterator[int]:
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [3000, pytest.param(10_000, marks=pytest.mark.load)])
async def test_every_hostile_message_is_answered_and_leaves_nothing_behind(
    running: RunningGateway, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    seen: Counter[tuple[str, grpc.StatusCode]] = Counter()
    generator = running.gateway.generator
    gate = asyncio.Semaphore(NUM_AT_A_TIME)
    tasks_before = len(asyncio.all_tasks())

    async def one(channel: grpc.aio.Channel, kind: str, rpc: str, content: bytes) -> None:
        async with gate:
            seen[kind, await _code(channel, rpc, content, KEY)] += 1

    with capture_logs() as logs:
        async with (
            grpc.aio.insecure_channel(running.gateway.address) as channel,
            asyncio.TaskGroup() as group,
        ):
            for kind, rpc, content in _hostile(count):
                group.create_task(one(channel, kind, rpc, content))
        answer = await running.stub.Generate(
            messages.GenerateRequest(text="a"), timeout=10, metadata=bearer(KEY)
        )
    gc.collect()

    assert answer.usage.completion_tokens == 3
    assert sum(seen.values()) == count
    assert {code for _, code in seen} <= EXPECTED, seen
    assert all(seen[kind.__name__, REFUSED] for kind in KINDS), seen
    assert generator.admission.num_running == generator.admission.num_waiting == 0
    assert sum(link.num_sequences for link in generator.verifiers.links) == 0
    assert len(asyncio.all_tasks()) <= tasks_before + NUM_AT_A_TIME
    assert "call_failed" not in {line["event"] for line in logs}
    text = str(logs) + caplog.text
    assert MARK not in text
    assert KEY not in text


@pytest.mark.parametrize("rpc", [*UNARY, "StreamGenerate"])
async def test_text_that_is_no_utf8_is_an_invalid_argument(
    running: RunningGateway, rpc: str
) -> None:
    content = b"\x0a\x02\xc3\x28"
    if rpc == "ListModels":
        content = b"\x0a"
    with pytest.raises(DecodeError):
        messages.GenerateRequest.FromString(content)

    async with grpc.aio.insecure_channel(running.gateway.address) as channel:
        assert await _code(channel, rpc, content, KEY) is REFUSED


async def test_an_unreadable_message_says_so_with_a_request_id(running: RunningGateway) -> None:
    async with grpc.aio.insecure_channel(running.gateway.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _unary(channel, "Generate")(b"\xff", timeout=30, metadata=bearer(KEY))

    assert reason(refused.value) == "UNREADABLE_MESSAGE"
    assert "paceline-request-id" in dict(refused.value.trailing_metadata() or ())


async def test_strangers_are_refused_whatever_they_send(running: RunningGateway) -> None:
    async with grpc.aio.insecure_channel(running.gateway.address) as channel:
        codes = {await _code(channel, rpc, content, "wrong") for _, rpc, content in _hostile(160)}

    assert codes == {grpc.StatusCode.UNAUTHENTICATED}


async def test_a_message_beyond_the_size_limit_is_refused(running: RunningGateway) -> None:
    content = b"\x1a" + bytes(_varint(MAX_MESSAGE_BYTES)) + bytes(MAX_MESSAGE_BYTES)
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(running.gateway.address, options=options) as channel:
        code = await _code(channel, "Generate", content, KEY)

    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
