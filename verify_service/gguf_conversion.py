"""
Converts a GGUF file once into a model folder that transformers and the gateway read.

The folder is cached under the hash of the file. Weights are unpacked, not requantized, and no
model is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError
from verify_service.gguf_architectures import (
    Architecture,
    architecture_of,
    model_config,
    special_token_ids,
    tensor_names,
)
from verify_service.gguf_file import GgufFile, GgufTensor, read_gguf
from verify_service.gguf_tokenizer import build_tokenizer, tokenizer_config
from verify_service.weights_file import PlannedTensor, Values, write_safetensors

CONVERTER_VERSION = 1
MANIFEST = "paceline_manifest.json"

Progress = Callable[[str], None]

_HASH_CHUNK_BYTES = 16 * 1024 * 1024
_PROGRESS_SECONDS = 2.0
_SLOW_HASH_BYTES = 2 * 1024**3  # takes about two seconds
_SPACE_FOR_THE_REST = 64 * 1024 * 1024  # bytes, for tokenizer and configuration


@dataclass(frozen=True, slots=True)
class _Source:
    """A GGUF file's identity."""

    path: Path
    size: int
    mtime_ns: int
    sha256: str

    @property
    def folder_name(self) -> str:
        return f"{self.path.stem}-{self.sha256[:16]}-v{CONVERTER_VERSION}"


def convert_gguf(gguf_path: Path, cache_dir: Path, progress: Progress) -> Path:
    """
    Return the model folder made from a GGUF file, converting the file if that was not done yet.

    Any number of processes may call this at once. Raises ``ConfigurationError`` with the cause
    and the remedy when the file or the cache folder cannot be used.
    """
    try:
        source = _identify(gguf_path, cache_dir, progress)
        folder = cache_dir / source.folder_name
        if is_intact(folder):
            return folder
        with _exclusive(cache_dir / ".locks" / source.folder_name, progress) as alone:
            if not is_intact(folder):
                if alone:
                    _remove_leftovers(cache_dir, source)
                _convert(source, folder, progress)
    except OSError as error:
        raise ConfigurationError(
            f"cannot convert {gguf_path} into {cache_dir}: {error.strerror or error}; "
            "check the path, its permissions and the free space, or choose another --cache-dir"
        ) from error
    return folder


def is_intact(folder: Path) -> bool:
    """
    Tell whether a converted folder is complete and unchanged.

    Files of the recorded size and time count as unchanged; others are checked by their hash.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest["converter_version"] == CONVERTER_VERSION and all(
            _matches(folder / name, entry) for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _matches(path: Path, entry: dict[str, object]) -> bool:
    status = path.stat()
    if status.st_size != entry["size"]:
        return False
    return status.st_mtime_ns == entry["mtime_ns"] or _sha256(path) == entry["sha256"]


def _identify(gguf_path: Path, cache_dir: Path, progress: Progress) -> _Source:
    """Hash the source, or recall its hash when its size and time are those of the last call."""
    path = gguf_path.expanduser().resolve()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {gguf_path}; name an existing .gguf file")
    status = path.stat()
    seen = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    record_path = cache_dir / ".sources" / f"{seen}.json"
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    record = _read_record(record_path)
    if record is None or stamp.items() - record.items():
        read_gguf(path)
        if status.st_size > _SLOW_HASH_BYTES:
            progress(f"hashing {path.name}")
        record = stamp | {"sha256": _sha256(path)}
        with suppress(OSError):  # a finished cache may be read-only
            _write_atomically(record_path, record)
    return _Source(path, status.st_size, status.st_mtime_ns, str(record["sha256"]))


def _read_record(path: Path) -> dict[str, object] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "sha256" in record else None


def _write_atomically(path: Path, contents: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial_path.write_text(json.dumps(contents), encoding="utf-8")
    partial_path.replace(path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _exclusive(lock_path: Path, progress: Progress) -> Iterator[bool]:
    """
    Wait until no other process converts the same file; yield whether that is certain.

    The lock dies with its process. Where the file system has none, publishing stays atomic and
    the slower process takes over the faster one's folder.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is converting this model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True


def _remove_leftovers(cache_dir: Path, source: _Source) -> None:
    for leftover in cache_dir.glob(f".partial-{source.folder_name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _convert(source: _Source, folder: Path, progress: Progress) -> None:
    started = time.monotonic()
    progress(
        f"converting {source.path.name} ({source.size / 2**20:.0f} MiB) once into {folder.parent}"
    )
    file = read_gguf(source.path)
    tensors = _planned_tensors(file)
    _check_space(folder.parent, sum(tensor.num_bytes for tensor in tensors))
    building = folder.parent / f".partial-{source.folder_name}-{os.getpid()}"
    building.mkdir()
    try:
        _write_configuration(file, building)
        progress("building the tokenizer")
        build_tokenizer(file).save(str(building / "tokenizer.json"), pretty=False)
        _write_weights(tensors, building / "model.safetensors", progress)
        _write_manifest(source, building)
        _publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    progress(f"converted in {time.monotonic() - started:.1f} s")


def _check_space(cache_dir: Path, weight_bytes: int) -> None:
    needed = weight_bytes + _SPACE_FOR_THE_REST
    free = shutil.disk_usage(cache_dir).free
    if free < needed:
        raise ConfigurationError(
            f"{cache_dir} has {free / 2**20:.0f} MiB of free space and the converted model needs "
            f"{needed / 2**20:.0f} MiB; free some or choose another --cache-dir"
        )


def _planned_tensors(file: GgufFile) -> list[PlannedTensor]:
    """Plan the weights: matrices in float16, vectors (norms, biases) in float32."""
    architecture = architecture_of(file)
    return [
        PlannedTensor(
            name=name,
            shape=file.tensors[gguf_name].shape,
            dtype="F32" if len(file.tensors[gguf_name].shape) == 1 else "F16",
            pieces=partial(_pieces, file, architecture, file.tensors[gguf_name]),
        )
        for gguf_name, name in tensor_names(file).items()
    ]


def _pieces(file: GgufFile, architecture: Architecture, tensor: GgufTensor) -> Iterable[Values]:
    """Yield a tensor's values as transformers lays them out."""
    if len(tensor.shape) == 1:
        offset = np.float32(tensor.name.endswith("norm.weight") and architecture.adds_one_to_norms)
        return (rows - offset for rows in file.rows(tensor))
    if architecture.permutes_queries_and_keys and ".attn_q." in tensor.name:
        return [_half(_unpermuted(file, tensor, "attention.head_count"), file, tensor)]
    if architecture.permutes_queries_and_keys and ".attn_k." in tensor.name:
        return [_half(_unpermuted(file, tensor, "attention.head_count_kv"), file, tensor)]
    return (_half(rows, file, tensor) for rows in file.rows(tensor))


def _unpermuted(file: GgufFile, tensor: GgufTensor, heads_key: str) -> npt.NDArray[np.float32]:
    """Put the rotary halves of each head back one after the other (llama.cpp interleaves them)."""
    values = np.concatenate(list(file.rows(tensor)))
    num_heads = file.integer(f"{file.architecture}.{heads_key}") or file.integer(
        f"{file.architecture}.attention.head_count"
    )
    by_pairs = values.reshape(num_heads or 1, -1, 2, tensor.shape[-1])
    return by_pairs.swapaxes(1, 2).reshape(tensor.shape)


def _half(values: npt.NDArray[np.float32], file: GgufFile, tensor: GgufTensor) -> Values:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise ConfigurationError(
            f"{file.path} has values in {tensor.name} that float16 cannot hold; "
            "use the model's safetensors folder instead"
        )
    return half


def _write_configuration(file: GgufFile, folder: Path) -> None:
    _write_json(folder / "config.json", model_config(file))
    _write_json(folder / "generation_config.json", special_token_ids(file))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file))
    if chat_template := file.text("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def _write_json(path: Path, contents: dict[str, object]) -> None:
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _write_weights(tensors: list[PlannedTensor], path: Path, progress: Progress) -> None:
    total = sum(tensor.num_bytes for tensor in tensors)
    written, said = 0, time.monotonic()
    for num_bytes in write_safetensors(path, tensors):
        written += num_bytes
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            progress(f"unpacking weights: {100 * written // total} %")


def _write_manifest(source: _Source, folder: Path) -> None:
    files = {
        path.name: {
            "sha256": _sha256(path),
            "size": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
        }
        for path in sorted(folder.iterdir())
    }
    manifest: dict[str, object] = {
        "model_name": source.path.stem,
        "source_name": source.path.name,
        "source_sha256": source.sha256,
        "converter_version": CONVERTER_VERSION,
        "files": files,
    }
    _write_json(folder / MANIFEST, manifest)


def _publish(building: Path, folder: Path) -> None:
    """Move the finished folder into place; a good one that is already there wins."""
    try:
        building.replace(folder)
    except OSError:
        if is_intact(folder):
            return
        shutil.rmtree(folder)
        building.replace(folder)
