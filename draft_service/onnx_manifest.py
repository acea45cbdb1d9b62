"""
What a drafting model's folder says about it: our manifest, or only a tokenizer beside a graph.

Written by the export and read by the drafter. It knows neither graphs nor weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError
from paceline.model_folder import tokenizer_fingerprint

FORMAT_VERSION = 1
GRAPH = "model.onnx"
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.npy"

_HASH_CHUNK_BYTES = 16 * 1024 * 1024
_REMEDY = "export it again: python -m draft_service.export"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was like when it was written."""

    sha256: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class DraftManifest:
    """What an export says about the model that it wrote."""

    source_name: str
    source_digest: str
    """Of the source's configuration and the layout of its weights."""
    tokenizer_fingerprint: str
    num_token_ids: int
    """Ids that the tokenizer knows; larger ones are padding of the embedding."""
    num_embeddings: int
    """Rows of the embedding: larger ids cannot be read."""
    num_head_tokens: int
    """Rows of the logits; ``vocabulary.npy`` says which token each stands for."""
    context_length: int
    weights: str
    """How matrices are stored: int4, int8, float16 or float32."""
    options_digest: str
    """Of everything that was chosen for the export."""
    report: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class OnnxModelFolder:
    """A graph that can draft, and whose tokens it speaks."""

    graph: Path
    tokenizer_fingerprint: str
    num_token_ids: int
    num_embeddings: int
    """0: unknown, as many as there are token ids."""
    head_token_ids: npt.NDArray[np.int64] | None
    """From a row of the logits to its token id; ``None``: a row stands for its own number."""


def read_onnx_folder(path: Path) -> OnnxModelFolder:
    """
    Return what a folder holds; exports of ours are checked against their manifest's hashes.

    A folder of another exporter needs ``model.onnx`` and ``tokenizer.json``. Raises
    ``ConfigurationError`` naming what is missing or damaged.
    """
    if not path.is_dir():
        raise ConfigurationError(f"setting onnx_model: there is no folder {path}; {_REMEDY}")
    if not (path / GRAPH).is_file():
        raise ConfigurationError(f"setting onnx_model: {path} holds no {GRAPH}; {_REMEDY}")
    if (path / MANIFEST).exists():
        return _own_folder(path)
    return OnnxModelFolder(
        graph=path / GRAPH,
        tokenizer_fingerprint=tokenizer_fingerprint(path),
        num_token_ids=count_token_ids(path / "tokenizer.json"),
        num_embeddings=0,
        head_token_ids=None,
    )


def read_manifest(path: Path) -> DraftManifest:
    """Return a folder's manifest; raises ``ConfigurationError`` if it cannot be understood."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = content["format_version"]
        if version == FORMAT_VERSION:
            content["files"] = {name: FileRecord(**each) for name, each in content["files"].items()}
            return _checked(DraftManifest(**content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{path / MANIFEST} cannot be read; {_REMEDY}") from error
    raise ConfigurationError(
        f"{path} has format version {version}, this drafter reads {FORMAT_VERSION}; {_REMEDY}"
    )


def _checked(manifest: DraftManifest) -> DraftManifest:
    """Return a manifest whose counts are counts and that vouches for what is read."""
    for count in (manifest.num_token_ids, manifest.num_embeddings, manifest.num_head_tokens):
        if type(count) is not int or count < 1:
            raise ValueError(f"{count!r} is no count")
    if not {GRAPH, VOCABULARY} <= manifest.files.keys():
        raise ValueError("a file has no hash")
    return manifest


def write_manifest(path: Path, manifest: DraftManifest) -> None:
    """Write the manifest beside the files that it describes."""
    text = json.dumps(asdict(manifest), indent=2)
    (path / MANIFEST).write_text(text + "\n", encoding="utf-8")


def record_file(path: Path) -> FileRecord:
    """Return the hash and the size of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return FileRecord(digest.hexdigest(), path.stat().st_size)


def is_intact(path: Path) -> bool:
    """Tell whether a folder holds everything that its manifest describes, unchanged."""
    try:
        manifest = read_manifest(path)
        return all(record_file(path / name) == kept for name, kept in manifest.files.items())
    except (ConfigurationError, OSError):
        return False


def count_token_ids(tokenizer: Path) -> int:
    """Return one more than the largest id that a ``tokenizer.json`` knows."""
    try:
        content = json.loads(tokenizer.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, dict):
            largest = max(vocabulary.values(), default=-1)
        else:
            largest = len(vocabulary) - 1
        added = (token["id"] for token in content.get("added_tokens", ()))
        return 1 + int(max(largest, *added, -1))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{tokenizer} holds no vocabulary; restore it from the model's source"
        ) from error


def _own_folder(path: Path) -> OnnxModelFolder:
    manifest = read_manifest(path)
    if not is_intact(path):
        raise ConfigurationError(
            f"setting onnx_model: files in {path} are not those of its manifest; {_REMEDY}"
        )
    return OnnxModelFolder(
        graph=path / GRAPH,
        tokenizer_fingerprint=manifest.tokenizer_fingerprint,
        num_token_ids=manifest.num_token_ids,
        num_embeddings=manifest.num_embeddings,
        head_token_ids=_read_vocabulary(path / VOCABULARY),
    )


def _read_vocabulary(file: Path) -> npt.NDArray[np.int64]:
    try:
        token_ids: npt.NDArray[np.int64] = np.load(file).astype(np.int64)
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise ConfigurationError(
            f"setting onnx_model: {file} is no list of token ids; {_REMEDY}"
        ) from error
    return token_ids
