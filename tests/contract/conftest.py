"""The service under contract: one in this process, or the one whose address was given."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from draft_service.registry import create_drafter
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from verify_service.server import VerifyServer, load
from verify_service.settings import VerifySettings

DRAFT_KINDS = ("ngram", pytest.param("suffix", marks=pytest.mark.timeout(300)))
"""Drafters that need no model; the first test of some compiles."""


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
    settings = DraftSettings(listen="127.0.0.1:0", drafter=draft_kind)
    async with running_server(settings, create_drafter(settings)) as server:
        yield server.address


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
