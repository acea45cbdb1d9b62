"""A gateway in front of a scripted verifier, for the tests that need no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import RunningGateway, running_gateway
from tests.doubles.scripted_verifier import ScriptedVerifier, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a chat template."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def verifier() -> ScriptedVerifier:
    """A verifier whose script a test may change."""
    return ScriptedVerifier()


@pytest_asyncio.fixture
async def running(folder: Path, verifier: ScriptedVerifier) -> AsyncIterator[RunningGateway]:
    """A gateway in front of the verifier."""
    async with serving(verifier) as address, running_gateway(folder, address) as gateway:
        yield gateway
