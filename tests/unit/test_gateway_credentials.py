"""Who gets in with what: hashed API keys, signed tokens, and everything that only looks alike."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path

import jwt
import pytest

from gateway.caller import ANYBODY, Caller
from gateway.credentials import CredentialFiles, Credentials
from gateway.generation import PriorityClass
from gateway.key_file import KeyFile
from gateway.token_verifier import TokenRules, TokenVerifier
from paceline.errors import ConfigurationError, PermissionDenied, Unauthenticated
from tests.doubles.credentials import AUDIENCE, ISSUER, Issuer, write_keys

KEY = "pk-test-0123456789"
RULES = TokenRules(AUDIENCE, ISSUER)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with one key."""
    entry: dict[str, object] = {"id": "a1", "tenant": "team-a", "max_priority": "interactive"}
    return write_keys(tmp_path / "keys.yaml", {KEY: entry})


def _refusal(credentials: Credentials, *headers: str | bytes) -> str:
    with pytest.raises(Unauthenticated) as refused:
        credentials.caller(headers)
    assert KEY not in refused.value.message
    return refused.value.reason


def test_without_files_anybody_may_call() -> None:
    assert Credentials(CredentialFiles()).caller([]) is ANYBODY
    assert ANYBODY.tenant == ""
    assert ANYBODY.priority(PriorityClass.INTERACTIVE) is PriorityClass.INTERACTIVE


def test_a_known_key_says_who_calls(keys: Path) -> None:
    caller = Credentials(CredentialFiles(keys)).caller([f"Bearer {KEY}"])

    assert (caller.name, caller.tenant) == ("a1", "team-a")


def test_the_scheme_is_read_in_any_case(keys: Path) -> None:
    assert Credentials(CredentialFiles(keys)).caller([f"bearer {KEY}"]).name == "a1"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ((), "CREDENTIAL_MISSING"),
        (("",), "CREDENTIAL_MALFORMED"),
        (("Bearer",), "CREDENTIAL_MALFORMED"),
        (("Bearer ",), "CREDENTIAL_MALFORMED"),
        ((KEY,), "CREDENTIAL_MALFORMED"),
        ((f"Basic {KEY}",), "CREDENTIAL_MALFORMED"),
        ((f"Bearer {KEY}".encode(),), "CREDENTIAL_MALFORMED"),
        ((f"Bearer {KEY}", f"Bearer {KEY}"), "CREDENTIAL_MALFORMED"),
        (("Bearer \u00e9",), "CREDENTIAL_MALFORMED"),
        (("Bearer " + "x" * 8193,), "CREDENTIAL_MALFORMED"),
        ((f"Bearer  {KEY}",), "KEY_UNKNOWN"),
        ((f"Bearer {KEY} ",), "KEY_UNKNOWN"),
        ((f"Bearer {KEY[:-1]}",), "KEY_UNKNOWN"),
        ((f"Bearer {KEY}x",), "KEY_UNKNOWN"),
        ((f"Bearer {KEY.upper()}",), "KEY_UNKNOWN"),
        (("Bearer a.b.c",), "KEY_UNKNOWN"),
        ((f"Bearer {hashlib.sha256(KEY.encode()).hexdigest()}",), "KEY_UNKNOWN"),
        (("Bearer " + "0" * 64,), "KEY_UNKNOWN"),
    ],
)
def test_what_is_not_exactly_one_known_key_is_refused(
    keys: Path, headers: tuple[str | bytes, ...], reason: str
) -> None:
    assert _refusal(Credentials(CredentialFiles(keys)), *headers) == reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys: []",
        "keys: 3",
        "[1]",
        "keys: [{id: a}]",
        "{{{",
        f"keys: [{{id: a, tenant: t, sha256: '{KEY}'}}]",
        f"keys: [{{id: 'a b', tenant: t, sha256: '{'0' * 64}'}}]",
        f"keys: [{{id: a, tenant: '', sha256: '{'0' * 64}'}}]",
        f"keys: [{{id: a, tenant: t, sha256: '{'0' * 64}', max_prio: batch}}]",
        f"keys: [{{id: a, tenant: t, sha256: '{'0' * 64}', max_priority: highest}}]",
        f"keys: [{{id: a, tenant: t, sha256: '{'0' * 64}', tokens_per_minute: 0}}]",
        f"keys: [{{id: a, tenant: t, sha256: '{'0' * 64}', key: '{KEY}'}}]",
        "keys: " + json.dumps([{"id": "a", "tenant": "t", "sha256": "0" * 64}] * 2),
    ],
)
def test_a_key_file_that_makes_no_sense_is_refused_and_repeats_no_key(
    tmp_path: Path, text: str
) -> None:
    """B094: unknown keys are errors."""
    path = tmp_path / "keys.yaml"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=r"keys\.yaml") as refused:
        KeyFile.read(path)

    assert KEY not in refused.value.message
    assert "\n" not in refused.value.message


def test_a_bad_file_leaves_the_known_keys(keys: Path) -> None:
    credentials = Credentials(CredentialFiles(keys))
    keys.write_text("keys: nonsense")

    with pytest.raises(ConfigurationError):
        credentials.reload()

    assert credentials.caller([f"Bearer {KEY}"]).name == "a1"


def test_a_removed_key_is_refused_after_the_reload(keys: Path) -> None:
    credentials = Credentials(CredentialFiles(keys))
    write_keys(keys, {"another": {"id": "b1", "tenant": "team-b"}})
    credentials.reload()

    assert _refusal(credentials, f"Bearer {KEY}") == "KEY_UNKNOWN"
    assert credentials.caller(["Bearer another"]).tenant == "team-b"


@pytest.mark.parametrize(
    ("ceiling", "wanted", "given"),
    [
        ("interactive", "INTERACTIVE", "INTERACTIVE"),
        ("interactive", None, "STANDARD"),
        ("standard", "BATCH", "BATCH"),
        ("batch", None, "BATCH"),
        ("standard", "INTERACTIVE", None),
        ("batch", "STANDARD", None),
    ],
)
def test_priority_stays_below_the_ceiling(
    tmp_path: Path, ceiling: str, wanted: str | None, given: str | None
) -> None:
    entry: dict[str, object] = {"id": "a", "tenant": "t", "max_priority": ceiling}
    path = write_keys(tmp_path / "keys.yaml", {KEY: entry})
    caller = KeyFile.read(path).caller(KEY)
    assert caller is not None
    asked = PriorityClass[wanted] if wanted else None

    if given is not None:
        assert caller.priority(asked) is PriorityClass[given]
        return
    with pytest.raises(PermissionDenied) as refused:
        caller.priority(asked)
    assert refused.value.field == "priority"


def _tokens(tmp_path: Path, issuer: Issuer, *others: Issuer) -> TokenVerifier:
    return TokenVerifier.read(issuer.write_jwks(tmp_path / "jwks.json", *others), RULES)


def test_a_signed_token_says_who_calls(tmp_path: Path) -> None:
    issuer, second = Issuer(), Issuer("k2")
    verifier = _tokens(tmp_path, issuer, second)
    grant = {"tenant": "t2", "max_priority": "batch", "tokens_per_minute": 100}

    caller: Caller = verifier.caller(issuer.token())
    other = verifier.caller(second.token(sub="app-2", paceline=grant))

    assert (caller.name, caller.tenant) == ("jwt:app-1", "team-j")
    assert (other.name, other.tenant) == ("jwt:app-2", "t2")
    assert other.grant is not None
    assert other.grant.tokens_per_minute == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": int(time.time()) - 60},
        {"exp": None},
        {"exp": "never"},
        {"nbf": int(time.time()) + 3600},
        {"aud": "someone-else"},
        {"aud": None},
        {"iss": "https://other.example"},
        {"iss": None},
        {"sub": None},
    ],
)
def test_a_token_that_does_not_hold_here_and_now_is_refused(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    issuer = Issuer()

    with pytest.raises(Unauthenticated):
        _tokens(tmp_path, issuer).caller(issuer.token(**changes))


@pytest.mark.parametrize("claim", [None, {}, "team", {"tenant": ""}, {"tenant": "t", "admin": 1}])
def test_a_token_that_grants_nothing_is_denied(tmp_path: Path, claim: object) -> None:
    issuer = Issuer()

    with pytest.raises(PermissionDenied) as refused:
        _tokens(tmp_path, issuer).caller(issuer.token(paceline=claim))

    assert refused.value.reason == "TOKEN_GRANTS_NOTHING"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _unsigned(issuer: Issuer) -> str:
    return jwt.encode(issuer.claims(), "", algorithm="none", headers={"kid": issuer.key_id})


def _signed_with_the_public_key(issuer: Issuer) -> str:
    parts = ({"alg": "HS256", "kid": issuer.key_id}, issuer.claims())
    signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    secret = json.dumps(issuer.jwk()).encode()
    return f"{signed}.{_base64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _of_another_key(issuer: Issuer) -> str:
    return Issuer(issuer.key_id).token()


def _of_an_unknown_key_id(issuer: Issuer) -> str:
    return Issuer("k9").token()


def _changed(issuer: Issuer) -> str:
    header, _, signature = issuer.token().split(".")
    claims = json.dumps(issuer.claims(paceline={"tenant": "root"})).encode()
    return ".".join((header, _base64(claims), signature))


def _without_signature(issuer: Issuer) -> str:
    return issuer.token().rpartition(".")[0] + "."


def _noise(issuer: Issuer) -> str:
    return "x.y.z"


@pytest.mark.parametrize(
    "forge",
    [
        _unsigned,
        _signed_with_the_public_key,
        _of_another_key,
        _of_an_unknown_key_id,
        _changed,
        _without_signature,
        _noise,
    ],
)
def test_forged_tokens_are_refused(tmp_path: Path, forge: object) -> None:
    issuer = Issuer()
    assert callable(forge)

    with pytest.raises(Unauthenticated) as refused:
        _tokens(tmp_path, issuer).caller(forge(issuer))

    assert refused.value.reason == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AAAA", "kid": "s"}]}', "3"]
)
def test_a_key_set_without_public_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match="JWKS") as refused:
        TokenVerifier.read(path, RULES)

    assert "\n" not in refused.value.message


def test_keys_and_tokens_are_valid_side_by_side(keys: Path, tmp_path: Path) -> None:
    issuer = Issuer()
    jwks = issuer.write_jwks(tmp_path / "jwks.json")
    credentials = Credentials(CredentialFiles(keys, jwks, RULES))

    assert credentials.caller([f"Bearer {KEY}"]).name == "a1"
    assert credentials.caller([f"Bearer {issuer.token()}"]).name == "jwt:app-1"
    assert _refusal(credentials, "Bearer other") == "KEY_UNKNOWN"
