"""
The table of values in a chart's README, made from the ``@param`` lines of its values.yaml.

The lines have the form that readme-generator-for-helm reads: ``## @section Title``, further
``##`` lines of text, and ``## @param path.of.value What it does`` above each value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

HEADING = "## Parameters"
_SECTION = re.compile(r"^## @section (.+)$")
_PARAM = re.compile(r"^\s*## @param (\S+) (.+)$")
_TEXT = re.compile(r"^## ([^@].*)$")
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Param:
    """One documented value."""

    path: str
    description: str


@dataclass(slots=True)
class Section:
    """A group of values under one heading."""

    title: str
    text: list[str] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)


def sections_of(values_text: str) -> list[Section]:
    """Return the sections and values that a values.yaml describes, in order."""
    sections = [Section("")]
    for line in values_text.splitlines():
        if match := _SECTION.match(line):
            sections.append(Section(match[1]))
        elif match := _PARAM.match(line):
            sections[-1].params.append(Param(match[1], match[2]))
        elif match := _TEXT.match(line):
            sections[-1].text.append(match[1])
    return [section for section in sections if section.params]


def params_of(values_text: str) -> list[Param]:
    """Return the values that a values.yaml describes."""
    return [param for section in sections_of(values_text) for param in section.params]


def leaf_paths(values: dict[str, Any], documented: set[str], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values; one that is described as a whole is not entered."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and path not in documented:
            yield from leaf_paths(value, documented, f"{path}.")
        else:
            yield path


def with_table(readme: str, values_text: str) -> str:
    """Return a README whose section ``Parameters`` is made anew."""
    before, _, rest = readme.partition(f"{HEADING}\n")
    _, heading, after = rest.partition("\n## ")
    return f"{before}{HEADING}\n{_tables(values_text)}{heading}{after}"


def _tables(values_text: str) -> str:
    values = yaml.safe_load(values_text)
    parts: list[str] = []
    for section in sections_of(values_text):
        parts += ["", f"### {section.title}", ""]
        if section.text:
            parts += [*section.text, ""]
        parts += ["| Value | What it does | Default |", "|---|---|---|"]
        parts += [
            f"| `{param.path}` | {_cell(param.description)} | {_default(values, param.path)} |"
            for param in section.params
        ]
    return "\n".join([*parts, ""])


def _default(values: Any, path: str) -> str:
    for key in path.split("."):
        values = values[key]
    shown = values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)
    if not shown:
        return '`""`'
    if len(shown) > _LONGEST_VALUE:
        return "see values.yaml"
    return f"`{_cell(shown)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
