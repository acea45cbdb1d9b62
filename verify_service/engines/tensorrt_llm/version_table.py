"""
Which recorded contract belongs to which release of the package.

Private modules change between releases, so the table only says where to start looking; the probe
decides. "Confirmed" would mean: ran on a GPU in that release's image. None has yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """A range of releases that share one contract."""

    family: str
    """The contract's name."""
    first: tuple[int, int, int]
    candidate: bool | None
    """True: release candidates only; False: stable ones only; None: both."""
    confirmed: bool
    remark: str


RELEASES = (
    Release("1.2rc", (1, 2, 0), True, False, "oldest shape of the drafter interface"),
    Release("1.2", (1, 2, 0), False, False, "first target: 1.2.0 and 1.2.1, the newest stable"),
    Release("1.3rc", (1, 3, 0), None, False, "no stable 1.3.0 was released"),
    Release("main", (1, 4, 0), None, False, "two-model speculation and the TRT backend are gone"),
)

OLDEST = (1, 2, 0)
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)")
_CANDIDATE = re.compile(r"\.?(rc|a|b|dev)")


def release_of(version: str) -> Release | None:
    """Return the newest known release range that ``version`` can belong to; None: too old."""
    match = _VERSION.match(version)
    if match is None:
        return None
    numbers = (int(match[1]), int(match[2]), int(match[3] or 0))
    is_candidate = _CANDIDATE.match(match[4]) is not None
    fitting = [
        release
        for release in RELEASES
        if release.first <= numbers and release.candidate in (None, is_candidate)
    ]
    # A candidate of 1.2 looks like 1.2rc, one of a later series like that series.
    return fitting[-1] if fitting else None
