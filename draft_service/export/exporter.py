"""
From a model folder to a drafting model: graph, vocabulary and manifest in a folder of their own.

The folder is written under another name and moved into place when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from draft_service.export.decoder_graph import DecoderPlan, write_decoder
from draft_service.export.decoder_shape import DecoderShape, read_shape
from draft_service.export.head_tokens import load_tokenizer, most_frequent_tokens
from draft_service.export.linear_weights import WeightKind, linear_weights
from draft_service.export.report import step_milliseconds, top_tokens
from draft_service.export.sample_text import SAMPLE_TEXT
from draft_service.export.source_weights import SourceWeights
from draft_service.onnx_manifest import (
    GRAPH,
    MANIFEST,
    VOCABULARY,
    DraftManifest,
    count_token_ids,
    is_intact,
    read_manifest,
    record_file,
    write_manifest,
)
from paceline.errors import ConfigurationError
from paceline.model_folder import ModelFolder, read_model_folder, tokenizer_fingerprint

EXPORTER_VERSION = 2
DEFAULT_HEAD_TOKENS = 32_768
_MAX_REPORT_TOKENS = 512

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What can be chosen about an export."""

    weights: WeightKind = "int8"
    """Of Gemma 3 270M, 8 bits agree with their source in 95 % of places and 4 bits in 70 %, and a
    pass over 4 bits saves two fifths of its CPU time (two cores without AVX-512)."""
    num_head_tokens: int = DEFAULT_HEAD_TOKENS
    texts: tuple[str, ...] = ()
    """What the drafter will write, more or less: its most frequent tokens are kept."""
    reports: bool = True
    """Measure speed and agreement; the latter needs memory for the whole source in float32."""

    @property
    def digest(self) -> str:
        """Equal for exports of equal contents."""
        chosen = (EXPORTER_VERSION, self.weights, self.num_head_tokens, *self.texts)
        return hashlib.sha256(repr(chosen).encode()).hexdigest()

    def folder_name(self, source: Path) -> str:
        """Return the name of the folder for an export of a model folder."""
        parts = [source.resolve().name, "draft", self.weights, f"head{self.num_head_tokens}"]
        return "-".join([*parts, self.digest[:8]])


def export_model(source: Path, folder: Path, options: ExportOptions, progress: Progress) -> Path:
    """
    Write a drafting model made from the model folder ``source``; return ``folder``.

    A finished export of the same source and options is left as it is. Raises
    ``ConfigurationError`` with cause and remedy if that cannot be done.
    """
    model = read_model_folder(source)
    shape = read_shape(model)
    weights = SourceWeights(source)
    head = most_frequent_tokens(source, options.num_head_tokens, model.eos_token_ids, options.texts)
    manifest = DraftManifest(
        source_name=model.name,
        source_digest=_source_digest(source, weights),
        tokenizer_fingerprint=tokenizer_fingerprint(source),
        num_token_ids=count_token_ids(source / "tokenizer.json"),
        num_embeddings=shape.num_embeddings,
        num_head_tokens=len(head),
        context_length=model.context_length,
        weights=options.weights,
        options_digest=options.digest,
    )
    _check_replaceable(folder)
    if _is_done(folder, manifest):
        progress(f"{folder} is up to date")
        return folder
    try:
        with _building(folder) as building:
            _write(building, _Work(model, shape, weights, head, options), manifest, progress)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {folder}: {error.strerror or error}; "
            "check its permissions and the free space, or choose another --output"
        ) from error
    return folder


@dataclass(frozen=True, slots=True)
class _Work:
    model: ModelFolder
    shape: DecoderShape
    weights: SourceWeights
    head: npt.NDArray[np.int64]
    options: ExportOptions


def _write(building: Path, work: _Work, manifest: DraftManifest, progress: Progress) -> None:
    started = time.monotonic()
    progress(f"exporting {work.model.name} with {work.options.weights} weights")
    stored = linear_weights(work.options.weights)
    plan = DecoderPlan(work.shape, stored, stored, work.head)
    write_decoder(plan, work.weights, building / GRAPH)
    np.save(building / VOCABULARY, work.head.astype(np.int32))
    files = {path.name: record_file(path) for path in sorted(building.iterdir())}
    num_bytes = sum(record.size for record in files.values())
    progress(f"written in {time.monotonic() - started:.0f} s: {num_bytes / 2**20:.0f} MiB")
    report = _report(building, work, progress) if work.options.reports else {}
    write_manifest(building, replace(manifest, files=files, report=report))


def _report(building: Path, work: _Work, progress: Progress) -> dict[str, float]:
    milliseconds = step_milliseconds(building / GRAPH)
    progress(f"a step of one token takes {milliseconds:.1f} ms on this machine")
    texts = work.options.texts or (SAMPLE_TEXT,)
    encoded = load_tokenizer(work.model.path).encode(texts[0][: _MAX_REPORT_TOKENS * 16])
    token_ids = encoded.ids[: min(_MAX_REPORT_TOKENS, work.model.context_length)]
    ours = top_tokens(building / GRAPH, token_ids, work.head)
    theirs = _source_tokens(building, work, token_ids)
    agreement = float((ours == theirs).mean())
    progress(
        f"its best token is its source's in {100 * agreement:.1f} % of {len(token_ids)} places"
    )
    return {"step_milliseconds": round(milliseconds, 2), "agreement": round(agreement, 4)}


def _source_tokens(building: Path, work: _Work, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the best tokens of the source as it is: all tokens, float32."""
    folder = building / "source"
    folder.mkdir()
    try:
        floats = linear_weights("float32")
        plan = DecoderPlan(work.shape, floats, floats, head_token_ids=None)
        write_decoder(plan, work.weights, folder / GRAPH)
        every_token = np.arange(work.shape.num_embeddings, dtype=np.int64)
        return top_tokens(folder / GRAPH, token_ids, every_token)
    finally:
        shutil.rmtree(folder)


def _source_digest(source: Path, weights: SourceWeights) -> str:
    config = (source / "config.json").read_bytes()
    return hashlib.sha256(config + weights.digest.encode()).hexdigest()


def _check_replaceable(folder: Path) -> None:
    """Raise ``ConfigurationError`` for a place that holds anything but a former export."""
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        if folder.name and (is_free or (folder / MANIFEST).is_file()):
            return
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {folder}: {error.strerror or error}; choose another --output"
        ) from error
    raise ConfigurationError(
        f"{folder} holds something else than a drafting model, which would be lost; "
        "choose another --output"
    )


def _is_done(folder: Path, wanted: DraftManifest) -> bool:
    if not is_intact(folder):
        return False
    found = read_manifest(folder)
    return (
        found.source_digest == wanted.source_digest
        and found.options_digest == wanted.options_digest
        and found.tokenizer_fingerprint == wanted.tokenizer_fingerprint
    )


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into; it takes the place of ``folder`` unless something fails."""
    building = folder.with_name(f".partial-{folder.name}-{os.getpid()}")
    building.mkdir(parents=True)
    try:
        yield building
        if folder.exists():
            shutil.rmtree(folder)
        building.replace(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
