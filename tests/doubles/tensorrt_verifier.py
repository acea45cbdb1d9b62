"""An in-process verify service on the fake TensorRT-LLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.doubles.fake_tensorrt_llm.llm import World
from tests.doubles.fake_tensorrt_llm.modules import install
from verify_service.server import VerifyServer, load
from verify_service.settings import VerifySettings
from verify_service.targets.table import LogitsFunction, markov_logits

VOCAB = 32
EOS = 31
LOGITS = markov_logits(VOCAB, seed=1, order=3)


def write_target(folder: Path, *, context_length: int = 512) -> Path:
    """Write the files of a model that the engine itself reads; the fake reads none."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "vocab_size": VOCAB,
        "max_position_embeddings": context_length,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def greedy(prompt: list[int], num_tokens: int, logits_of: LogitsFunction = LOGITS) -> list[int]:
    """Return what the target alone says after ``prompt``."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        logits = list(logits_of(tuple(tokens)))
        tokens.append(max(range(len(logits)), key=lambda token: logits[token]))
    return tokens[len(prompt) :]


class TensorRtVerifier:
    """A running server, its address and the fake's world."""

    def __init__(self, server: VerifyServer, address: str, world: World) -> None:
        self.server = server
        self.address = address
        self.world = world


@asynccontextmanager
async def running_tensorrt_verifier(
    patch: pytest.MonkeyPatch,
    folder: Path,
    *,
    family: str = "1.2",
    pools: dict[str, str] | None = None,
    logits_of: LogitsFunction = LOGITS,
    max_kv_tokens: int = 100_000,
    **fields: object,
) -> AsyncIterator[TensorRtVerifier]:
    """Serve the fake on a free port."""
    world = install(patch, family, logits_of)
    world.max_kv_tokens = max_kv_tokens
    settings = VerifySettings(
        engine="tensorrt-llm",
        model=write_target(folder),
        pools=pools or {},
        drain_seconds=5,
        **fields,  # type: ignore[arg-type]  # field names
    )
    loaded = await asyncio.to_thread(load, settings)
    server = VerifyServer(loaded, settings)
    port = await server.start()
    try:
        yield TensorRtVerifier(server, f"127.0.0.1:{port}", world)
    finally:
        await server.aclose()
