"""
API keys from a file that holds only their hashes. Tokens signed by others: ``token_verifier``.

    keys:
      - id: team-a-2026            # appears in logs
        sha256: 9f86d081884c...    # of the key: printf %s "$KEY" | sha256sum
        tenant: team-a
        max_priority: interactive  # and the limits of Grant
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gateway.caller import Caller, Grant
from paceline.errors import ConfigurationError
from paceline.yaml_file import first_problem, read_yaml

_NOBODY = bytes(32)
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


class _Entry(Grant):
    id: str
    sha256: str

    @field_validator("id")
    @classmethod
    def _is_id(cls, value: str) -> str:
        if not _ID.fullmatch(value):
            raise ValueError("must be 1 to 64 letters, digits, dots, dashes or underscores")
        return value

    @field_validator("sha256")
    @classmethod
    def _is_digest(cls, value: str) -> str:
        if not _DIGEST.fullmatch(value):
            raise ValueError(
                'must be 64 hexadecimal digits, the hash of the key: printf %s "$KEY" | sha256sum'
            )
        return value


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Annotated[tuple[_Entry, ...], Field(min_length=1)]


class KeyFile:
    """The keys of a file as it was read; ``read`` it anew for another state."""

    def __init__(self, callers: dict[bytes, Caller]) -> None:
        self._callers = callers

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Return the keys of a YAML or JSON file; raises ``ConfigurationError``."""
        entries = _parse(path).keys
        callers = {
            bytes.fromhex(entry.sha256): Caller(entry.id, _grant(entry)) for entry in entries
        }
        if len({entry.id for entry in entries}) < len(entries) or len(callers) < len(entries):
            raise ConfigurationError(f"key file {path}: an id or a key occurs twice; keep one")
        return cls(callers)

    def caller(self, key: str) -> Caller | None:
        """Return whose key this is; None: nobody's."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        # Time of the look-up tells about digests only, from which no key can be guessed.
        known = digest if digest in self._callers else _NOBODY
        return self._callers[known] if hmac.compare_digest(known, digest) else None


def _parse(path: Path) -> _KeyFile:
    content = read_yaml(path, "key file", "list keys under `keys`")
    try:
        return _KeyFile.model_validate(content)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ConfigurationError(f"key file {path}: {where}: {problem}") from None


def _grant(entry: _Entry) -> Grant:
    return Grant(**entry.model_dump(exclude={"id", "sha256"}))
