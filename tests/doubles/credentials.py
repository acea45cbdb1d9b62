"""API keys and signed tokens for tests, and the files that a gateway knows them by."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

AUDIENCE, ISSUER = "paceline-test", "https://issuer.example"


def write_keys(path: Path, keys: dict[str, dict[str, object]]) -> Path:
    """Write a key file: each key with the fields of its entry besides the hash."""
    entries = [
        {"sha256": hashlib.sha256(key.encode()).hexdigest(), **entry} for key, entry in keys.items()
    ]
    beside = path.with_suffix(".new")
    beside.write_text(yaml.safe_dump({"keys": entries}))
    beside.replace(path)
    return path


def bearer(credential: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries a credential."""
    return (("authorization", f"Bearer {credential}"),)


class Issuer:
    """Signs tokens, and publishes its key."""

    def __init__(self, key_id: str = "k1") -> None:
        self.key_id = key_id
        self.private_key = ec.generate_private_key(ec.SECP256R1())

    def write_jwks(self, path: Path, *others: Issuer) -> Path:
        """Write the public keys."""
        keys = [issuer.jwk() for issuer in (self, *others)]
        path.write_text(json.dumps({"keys": keys}))
        return path

    def jwk(self) -> dict[str, Any]:
        """Return the public key."""
        public = ECAlgorithm.to_jwk(self.private_key.public_key(), as_dict=True)
        return {**public, "kid": self.key_id, "alg": "ES256", "use": "sig"}

    def claims(self, **changes: object) -> dict[str, Any]:
        """Return what a valid token says."""
        claims = {
            "sub": "app-1",
            "aud": AUDIENCE,
            "iss": ISSUER,
            "exp": int(time.time()) + 600,
            "paceline": {"tenant": "team-j"},
        }
        changed = claims | changes
        return {name: value for name, value in changed.items() if value is not None}

    def token(self, **changes: object) -> str:
        """Return a token; changes replace claims, None leaves one out."""
        headers = {"kid": self.key_id}
        claims = self.claims(**changes)
        return jwt.encode(claims, self.private_key, algorithm="ES256", headers=headers)
