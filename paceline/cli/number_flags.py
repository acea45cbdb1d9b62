"""Flags that take whole numbers: out of range they are refused before anything else happens."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

from paceline.errors import ConfigurationError

MAX_UINT32: Final = 2**32 - 1
"""The largest count that a message can carry."""

_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,40}")
MAX_SEED: Final = 2**64 - 1
MAX_STREAMS: Final = 65_536
MAX_REQUESTS: Final = 1_000_000
"""Each keeps its figures until the end."""


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of a flag; argparse names the flag where the text is no such number."""

    def read(text: str) -> int:
        number = int(text) if _DIGITS.fullmatch(text) else least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number in [{least}, {most}]")
        return number

    return read


def check_seeds(first: int, num_requests: int) -> None:
    """Raise ``ConfigurationError`` if the seeds from the first one on, one a request, run out."""
    most = MAX_SEED + 1 - num_requests
    if first > most:
        raise ConfigurationError(
            f"--seed {first} is not in [0, {most}]: each of {num_requests} requests has its own"
        )
