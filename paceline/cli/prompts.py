"""Prompts for commands that need some: built-in ones of several kinds, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.cli.text_files import text_of
from paceline.errors import ConfigurationError

MAX_PROMPTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class NamedPrompt:
    """A prompt and the kind of text that it asks for."""

    workload: str
    text: str


_BASKET: Final = '''\
class Basket:
    """The goods that a customer wants to buy."""

    def __init__(self, customer):
        self.customer = customer
        self.items = []

    def add(self, name, price, quantity=1):
        if quantity < 1:
            raise ValueError("quantity must be at least 1")
        self.items.append((name, price, quantity))

    def total(self):
        return sum(price * quantity for _, price, quantity in self.items)
'''

_PEOPLE: Final = """\
Anna Berger, 34, is a nurse in Vienna.
JSON: {"name": "Anna Berger", "age": 34, "occupation": "nurse", "city": "Vienna"}
Tom Okafor, 51, is a carpenter in Lagos.
JSON: {"name": "Tom Okafor", "age": 51, "occupation": "carpenter", "city": "Lagos"}
Rosa Quispe, 28, is a teacher in Lima.
JSON:"""

BUILT_IN: Final[Mapping[str, Sequence[str]]] = {
    "edit": (
        f"The file before the change:\n\n```python\n{_BASKET}```\n\nThe file after the change. "
        "The attribute items is now called entries:\n\n```python\n",
        f"# basket.py, first version\n{_BASKET}\n\n# basket.py, second version\n",
    ),
    "json": (_PEOPLE, '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name":'),
    "code": (
        '"""Prime numbers and perfect numbers."""\n\n\ndef primes_below(limit):\n',
        "def quicksort(values):\n",
    ),
    "prose": (
        "The lighthouse stood at the end of a long road, and nobody in the village remembered",
        "Once upon a time there was a fox who",
    ),
}
"""By workload. Edits and JSON repeat their prompt, which drafts gain most from; prose does not."""


def named_prompts(workload: str, path: Path | None) -> list[NamedPrompt]:
    """
    Return the prompts of one built-in workload or of all (``mixed``), or those of a file.

    A file holds one prompt per line: JSON objects with ``prompt`` and perhaps ``workload``, or
    plain text. Raises ``ConfigurationError``.
    """
    if path is not None:
        return _from_file(path)
    if workload == "mixed":
        rows = zip(*BUILT_IN.values(), strict=True)
        return [
            NamedPrompt(name, text)
            for row in rows
            for name, text in zip(BUILT_IN, row, strict=True)
        ]
    return [NamedPrompt(workload, text) for text in BUILT_IN[workload]]


def _from_file(path: Path) -> list[NamedPrompt]:
    lines = text_of(path, "--prompts").splitlines()
    prompts = [
        _from_line(line, f"--prompts {path}: line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not 0 < len(prompts) <= MAX_PROMPTS:
        raise ConfigurationError(
            f"--prompts {path}: {len(prompts)} prompts; have 1 to {MAX_PROMPTS}, one per line"
        )
    return prompts


def _from_line(line: str, where: str) -> NamedPrompt:
    if not line.lstrip().startswith("{"):
        return NamedPrompt("file", line)
    try:
        entry = json.loads(line)
        text, workload = entry["prompt"], entry.get("workload", "file")
    except (ValueError, KeyError, RecursionError):
        raise ConfigurationError(f'{where}: not JSON with a "prompt"') from None
    if not isinstance(text, str) or not isinstance(workload, str):
        raise ConfigurationError(f'{where}: "prompt" and "workload" are texts')
    return NamedPrompt(workload, text)
