"""Text files that flags name."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigurationError


def text_of(path: Path, option: str) -> str:
    """
    Return what a file holds, without the byte order mark that some editors begin it with.

    Raises ``ConfigurationError`` naming the option and the file.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "not a text"
        raise ConfigurationError(f"{option} {path}: {cause}") from None
