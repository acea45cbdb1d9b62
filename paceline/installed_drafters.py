"""Drafters that other distributions add through entry points. It imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

DRAFTERS_GROUP: Final = "paceline.drafters"
"""Each entry point names a callable from the draft service's settings to a drafter."""


def installed_drafters() -> Mapping[str, EntryPoint]:
    """Return the entry point of each installed drafter by its name."""
    return {point.name: point for point in entry_points(group=DRAFTERS_GROUP)}
