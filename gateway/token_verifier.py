"""JSON Web Tokens, checked against the public keys of a JWKS file. API keys: ``key_file``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from pydantic import ValidationError

from gateway.caller import Caller, Grant
from paceline.errors import ConfigurationError, PermissionDenied, Unauthenticated

CLAIM: Final = "paceline"
"""The claim that holds a ``Grant``."""

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures only: a shared secret, or none, would let everyone who verifies also issue."""

CLOCK_SKEW_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say."""

    audience: str = ""
    issuer: str = ""


class TokenVerifier:
    """The keys of a JWKS file as it was read; ``read`` it anew for another state."""

    def __init__(self, keys: dict[str, jwt.PyJWK], rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    @classmethod
    def read(cls, path: Path, rules: TokenRules) -> TokenVerifier:
        """Return the keys of a file; raises ``ConfigurationError``."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"JWKS {path}: {error.strerror}; correct the path") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"JWKS {path} is not JSON") from None
        try:
            found = jwt.PyJWKSet.from_json(text).keys
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise ConfigurationError(f"JWKS {path} holds no usable key set; check it") from None
        keys = {key.key_id: key for key in found if key.key_id and key.algorithm_name in ALGORITHMS}
        if not keys:
            raise ConfigurationError(
                f"JWKS {path} holds no public signature key with a kid; add one"
            )
        return cls(keys, rules)

    def caller(self, token: str) -> Caller:
        """Return whose token this is; raises ``Unauthenticated`` or ``PermissionDenied``."""
        claims = self._claims(token)
        try:
            grant = Grant.model_validate(claims.get(CLAIM))
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]
            where = ".".join((CLAIM, *(str(part) for part in problem["loc"])))
            raise PermissionDenied(
                f"the token's claim {where} grants nothing: {problem['msg']}; "
                "have it issued with a tenant",
                reason="TOKEN_GRANTS_NOTHING",
            ) from None
        return Caller(f"jwt:{claims['sub']}"[:128], grant)

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            key = self._keys.get(str(jwt.get_unverified_header(token).get("kid")))
            if key is None:
                raise Unauthenticated(
                    "the token is signed with an unknown key; get a new token",
                    reason="TOKEN_INVALID",
                )
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[str(key.algorithm_name)],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                leeway=CLOCK_SKEW_SECONDS,
                options={"require": ["exp", "sub", "aud", "iss"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated(
                "the token has expired; get a new token", reason="TOKEN_EXPIRED"
            ) from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise Unauthenticated(
                "the token is not valid here; get one of the right issuer and audience",
                reason="TOKEN_INVALID",
            ) from None
        return claims
