"""
The drafters that a draft service can run, by name.

Other distributions add theirs through entry points of the group ``paceline.drafters``: each names
a function that takes the ``DraftSettings`` and returns a ``Drafter``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import TypeAlias

from draft_service.composite import CompositeDrafter, CompositeOptions
from draft_service.drafter import Drafter
from draft_service.ngram import NgramDrafter, NgramOptions
from draft_service.onnx_drafter import OnnxDrafter
from draft_service.onnx_manifest import read_onnx_folder
from draft_service.onnx_runtime import load_graph
from draft_service.onnx_session import OnnxOptions
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from paceline.installed_drafters import installed_drafters

DrafterFactory: TypeAlias = Callable[[DraftSettings], Drafter]


def create_drafter(settings: DraftSettings) -> Drafter:
    """Return the drafter that the settings name; raises ``ConfigurationError`` if there is none."""
    return _factory(settings.drafter, "drafter")(settings)


def _factory(name: str, setting: str) -> DrafterFactory:
    if name in _OWN:
        return _OWN[name]
    found = installed_drafters()
    if name not in found:
        known = ", ".join(sorted({*_OWN, *found}))
        raise ConfigurationError(f"setting {setting}: unknown drafter {name!r}; known: {known}")
    return _load(found[name], setting)


def _load(point: EntryPoint, setting: str) -> DrafterFactory:
    try:
        factory: DrafterFactory = point.load()
    except ImportError as error:
        raise ConfigurationError(
            f"setting {setting}: {point.name} ({point.value}) cannot be imported: {error}"
        ) from error
    return factory


def _create_ngram(settings: DraftSettings) -> Drafter:
    return NgramDrafter(
        NgramOptions(
            min_length=settings.ngram_min_len,
            max_length=settings.ngram_max_len,
            min_probability=settings.ngram_min_probability,
        )
    )


def _create_suffix(settings: DraftSettings) -> Drafter:
    try:
        from draft_service.suffix import SuffixDrafter, SuffixOptions
    except ImportError as error:
        raise ConfigurationError(
            f"setting drafter: suffix needs pip install '.[draft]' in a clone: {error}"
        ) from error
    return SuffixDrafter(
        SuffixOptions(
            min_probability=settings.suffix_min_probability,
            corpus_tokens=settings.suffix_corpus_tokens,
            corpus_tenants=settings.suffix_corpus_tenants,
        )
    )


def _create_composite(settings: DraftSettings) -> Drafter:
    members = [_factory(name, "composite_members")(settings) for name in settings.composite_members]
    return CompositeDrafter(
        members,
        CompositeOptions(
            min_probability=settings.composite_min_probability,
            max_sure_tokens=settings.composite_max_sure_tokens,
            min_gain=settings.composite_min_gain,
        ),
    )


def _create_onnx(settings: DraftSettings) -> Drafter:
    if settings.onnx_model is None:
        raise ConfigurationError(
            "setting onnx_model: the drafter onnx needs a model folder; "
            "make one: python -m draft_service.export"
        )
    folder = read_onnx_folder(settings.onnx_model)
    graph, signature = load_graph(folder.graph, settings.onnx_provider, settings.onnx_threads)
    options = OnnxOptions(
        num_siblings=settings.onnx_siblings,
        min_probability=settings.onnx_min_probability,
        min_read_probability=settings.onnx_min_read_probability,
        max_ahead_tokens=settings.onnx_max_ahead_tokens,
        max_context_tokens=settings.onnx_max_context_tokens,
        chunk_tokens=settings.onnx_chunk_tokens,
        max_kv_tokens=settings.onnx_max_kv_tokens,
    )
    return OnnxDrafter(folder, graph, signature, options)


_OWN: dict[str, DrafterFactory] = {
    "ngram": _create_ngram,
    "suffix": _create_suffix,
    "composite": _create_composite,
    "onnx": _create_onnx,
}
