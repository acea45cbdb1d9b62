"""
The package's API as recorded: modules, signatures and attributes that the engine relies on.

One JSON file per family in ``contracts/``; a name is written ``module:object.member``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from paceline.errors import ConfigurationError

FAMILIES = ("1.2rc", "1.2", "1.3rc", "main")


@dataclass(frozen=True, slots=True)
class Contract:
    """What one family of releases offers."""

    family: str
    signatures: Mapping[str, tuple[str, ...]] = field(repr=False)
    """Callable to parameter names that it must accept, ``self`` left out."""
    attributes: Mapping[str, tuple[str, ...]] = field(repr=False)
    """Class to names that its instances must have: fields, properties or methods."""
    absent: Mapping[str, tuple[str, ...]] = field(repr=False)
    """Class to names that it must not have, since their presence would change behaviour."""


def load_contract(family: str) -> Contract:
    """Return a recorded contract; raises ``ConfigurationError`` for an unknown family."""
    if family not in FAMILIES:
        raise ConfigurationError(
            f"no contract is recorded for TensorRT-LLM {family}; known: {', '.join(FAMILIES)}"
        )
    path = files(__package__) / "contracts" / f"{family}.json"
    return parse_contract(json.loads(path.read_text(encoding="utf-8")))


def parse_contract(content: Mapping[str, object]) -> Contract:
    """Return the contract of a file's content."""
    return Contract(
        family=str(content["family"]),
        signatures=_table(content, "signatures"),
        attributes=_table(content, "attributes"),
        absent=_table(content, "absent"),
    )


def _table(content: Mapping[str, object], key: str) -> dict[str, tuple[str, ...]]:
    entries = content.get(key, {})
    if not isinstance(entries, dict):
        raise ConfigurationError(f"contract: {key} is no table")
    return {name: tuple(members) for name, members in entries.items()}
