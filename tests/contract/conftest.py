"""The service under contract: one in this process, or the one whose address was given."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from draft_service.registry import create_drafter
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from tests.doubles.exported_models import exported_tiny_model
from verify_service.server import VerifyServer, load
from verify_service.settings import VerifySettings

COMPILES = pytest.mark.timeout(300)
DRAFT_KINDS = (
    "ngram",
    pytest.param("suffix", marks=COMPILES),
    "onnx",
    pytest.param("composite", marks=COMPILES),
)
"""The first test of some compiles; what needs a model gets the tiny one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a draft service for each kind of drafter, or once for the one given."""
    if "draft_kind" in metafunc.fixturenames:
        given = metafunc.config.getoption("--draft-address")
        metafunc.parametrize("draft_kind", ["given"] if given else DRAFT_KINDS)


@pytest_asyncio.fixture
async def draft_address(request: pytest.FixtureRequest, draft_kind: str) -> AsyncIterator[str]:
    """Yield the address of the draft service that the suite runs against."""
    given: str | None = request.config.getoption("--draft-address")
    if given:
        yield given
        return
    settings = _draft_settings(draft_kind)
    async with running_server(settings, create_drafter(settings)) as server:
        yield server.address


def _draft_settings(kind: str) -> DraftSettings:
    settings = DraftSettings(listen="127.0.0.1:0", drafter=kind)
    if kind not in {"onnx", "composite"}:
        return settings
    # The suite expects an answer to every session at once, so that all prompts are read in one go.
    model = {"onnx_model": exported_tiny_model(), "onnx_threads": 1, "onnx_chunk_tokens": 65_536}
    return settings.model_copy(update=model)


@pytest_asyncio.fixture
async def verify_address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Yield the address of the verify service that the suite runs against."""
    given: str | None = request.config.getoption("--verify-address")
    if given:
        yield given
        return
    settings = VerifySettings(target="table")
    server = VerifyServer(load(settings), settings)
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.aclose()
