"""
The drafters that a draft service can run, by name.

Other distributions add theirs through entry points of the group ``paceline.drafters``: each names
a function that takes the ``DraftSettings`` and returns a ``Drafter``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from draft_service.composite import CompositeDrafter, CompositeOptions
from draft_service.drafter import Drafter
from draft_service.ngram import NgramDrafter, NgramOptions
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError

ENTRY_POINT_GROUP = "paceline.drafters"

DrafterFactory: TypeAlias = Callable[[DraftSettings], Drafter]


def create_drafter(settings: DraftSettings) -> Drafter:
    """Return the drafter that the settings name; raises ``ConfigurationError`` if there is none."""
    name = settings.drafter
    if name in _OWN:
        return _OWN[name](settings)
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted({*_OWN, *found}))
        raise ConfigurationError(f"setting drafter: unknown drafter {name!r}; known: {known}")
    return _load(found[name])(settings)


def _load(point: EntryPoint) -> DrafterFactory:
    try:
        factory: DrafterFactory = point.load()
    except ImportError as error:
        raise ConfigurationError(
            f"setting drafter: {point.name} ({point.value}) cannot be imported: {error}"
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


def _create_composite(settings: DraftSettings) -> Drafter:
    members = [
        create_drafter(settings.model_copy(update={"drafter": name}))
        for name in settings.composite_members
    ]
    return CompositeDrafter(
        members,
        CompositeOptions(
            min_probability=settings.composite_min_probability,
            max_sure_tokens=settings.composite_max_sure_tokens,
            min_gain=settings.composite_min_gain,
        ),
    )


_OWN: dict[str, DrafterFactory] = {"ngram": _create_ngram, "composite": _create_composite}
