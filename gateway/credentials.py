"""From an ``authorization`` header to a caller. Keys and tokens are read from files, and anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.caller import ANYBODY, Caller
from gateway.key_file import KeyFile
from gateway.token_verifier import TokenRules, TokenVerifier
from paceline.errors import Unauthenticated

MAX_CREDENTIAL_CHARACTERS: Final = 8192


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where valid credentials are known from; without any file, everybody may call."""

    api_keys: Path | None = None
    jwks: Path | None = None
    rules: TokenRules = field(default_factory=TokenRules)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that there are."""
        return tuple(path for path in (self.api_keys, self.jwks) if path is not None)


class Credentials:
    """Knows callers by their credentials."""

    def __init__(self, files: CredentialFiles) -> None:
        self._files = files
        self._keys: KeyFile | None = None
        self._tokens: TokenVerifier | None = None
        self.reload()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files to watch."""
        return self._files.paths

    def reload(self) -> None:
        """Read the files; raises ``ConfigurationError`` and keeps what was valid before."""
        files = self._files
        keys = None if files.api_keys is None else KeyFile.read(files.api_keys)
        tokens = None if files.jwks is None else TokenVerifier.read(files.jwks, files.rules)
        self._keys, self._tokens = keys, tokens

    def caller(self, headers: Sequence[str | bytes]) -> Caller:
        """
        Return who calls with these ``authorization`` headers.

        Raises ``Unauthenticated`` or ``PermissionDenied``. No message repeats the credential.
        """
        if self._keys is None and self._tokens is None:
            return ANYBODY
        credential = _credential(headers)
        if self._tokens is not None and credential.count(".") == 2:
            return self._tokens.caller(credential)
        caller = self._keys.caller(credential) if self._keys is not None else None
        if caller is None:
            raise Unauthenticated("the API key is not known here", reason="KEY_UNKNOWN")
        return caller


def _credential(headers: Sequence[str | bytes]) -> str:
    if not headers:
        raise Unauthenticated(
            "a credential is needed: send metadata `authorization: Bearer <key or token>`",
            reason="CREDENTIAL_MISSING",
        )
    scheme, _, credential = headers[0].partition(" ") if isinstance(headers[0], str) else ("",) * 3
    is_fine = (
        len(headers) == 1
        and scheme.lower() == "bearer"
        and 0 < len(credential) <= MAX_CREDENTIAL_CHARACTERS
        and credential.isascii()
    )
    if not is_fine:
        raise Unauthenticated(
            "send exactly one metadata entry `authorization: Bearer <key or token>`",
            reason="CREDENTIAL_MALFORMED",
        )
    return credential
