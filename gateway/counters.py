"""In-process counts of what happened, by name and label. Exporting them is another's work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

Labels = tuple[str, ...]


class Counters:
    """
    Counts that only grow.

    Names: ``requests`` (code), ``draft_fallbacks`` (cause), ``verifier_links_lost`` (address),
    ``verifiers_refused`` (address, reason), ``failovers`` (reason),
    ``failovers_refused`` (reason), ``probes`` (pool), ``pool_choices`` (pool, cause).
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {}

    def increment(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a count."""
        self._counts.setdefault(name, Counter())[labels] += by

    def value(self, name: str, *labels: str) -> int:
        """Return a count; 0 when it was never incremented."""
        return self._counts.get(name, Counter())[labels]

    def snapshot(self) -> Mapping[str, Mapping[Labels, int]]:
        """Return a copy of all counts."""
        return {name: dict(counts) for name, counts in self._counts.items()}
