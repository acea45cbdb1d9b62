"""Files that people write, wrong in every way: each is refused by name, none with a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.caller import Caller
from gateway.key_file import KeyFile
from gateway.settings import GatewaySettings
from gateway.token_verifier import TokenRules, TokenVerifier
from paceline.cli.text_files import text_of
from paceline.errors import ConfigurationError
from paceline.model_folder import read_model_folder
from paceline.routing import read_routing
from paceline.settings import load_settings
from verify_service.generation_defaults import generation_defaults
from verify_service.server import load
from verify_service.settings import VerifySettings

WRONG = {
    "binary": b"\xff\xfe\x00\x80pools",
    "no date": b"a: 2026-99-99",
    "brackets without end": b"[" * 5_000,
    "a number": b"7",
    "a list": b"[1, 2]",
    "a control character": b"a: \x01",
    "two documents": b"--- 1\n--- 2\n",
    "an unknown tag": b"!!python/object:os.system {}",
    "a list as key": b"? [1, 2]\n: 3",
}


def _generation_config(path: Path) -> object:
    (path.parent / "generation_config.json").write_bytes(path.read_bytes())
    return generation_defaults(path.parent)


def _model_config(path: Path) -> object:
    (path.parent / "config.json").write_bytes(path.read_bytes())
    return read_model_folder(path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "routing": read_routing,
    "keys": KeyFile.read,
    "settings": lambda path: load_settings(GatewaySettings, "gateway", ["--config", str(path)]),
    "jwks": lambda path: TokenVerifier.read(path, TokenRules("issuer", "audience")),
    "generation config": _generation_config,
    "model config": _model_config,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_by_name(reader: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "written"
    path.write_bytes(WRONG[wrong])

    with pytest.raises(ConfigurationError) as refusal:
        READERS[reader](path)

    assert str(tmp_path) in refusal.value.message
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize("reader", READERS)
@given(content=st.binary(max_size=64))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_read_or_refused(
    reader: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "written"
    path.write_bytes(content)

    message = ""
    try:
        READERS[reader](path)
    except ConfigurationError as refusal:
        message = refusal.message

    assert "\n" not in message


@pytest.mark.parametrize("reader", ["routing", "keys", "settings", "jwks"])
@pytest.mark.parametrize("nothing", ["", "null", "# all of it is a comment\n"])
def test_a_file_that_is_empty_as_one_being_rewritten_is_refused(
    reader: str, nothing: str, tmp_path: Path
) -> None:
    path = tmp_path / "written"
    path.write_text(nothing)

    with pytest.raises(ConfigurationError) as refusal:
        READERS[reader](path)

    assert str(path) in refusal.value.message


@pytest.mark.parametrize("reader", ["routing", "keys", "settings", "jwks"])
def test_a_folder_is_no_file(reader: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="directory"):
        READERS[reader](tmp_path)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ('{"do_sample": true, "temperature": -1}', "temperature"),
        ('{"do_sample": true, "temperature": "hot"}', "temperature"),
        ('{"top_k": -5}', "top_k"),
        ('{"top_p": 1.5}', "top_p"),
        ('{"repetition_penalty": [1]}', "repetition_penalty"),
    ],
)
def test_a_generation_config_names_its_wrong_field(
    content: str, field: str, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(content)

    with pytest.raises(ConfigurationError, match=field):
        generation_defaults(tmp_path)


def test_a_text_that_is_none_is_refused_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe\x80")

    with pytest.raises(ConfigurationError, match="--file"):
        text_of(tmp_path / "text", "--file")


def test_no_key_is_told_that_stands_in_place_of_its_hash(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("keys: [{id: a, tenant: t, sha256: my-secret-key}]")

    with pytest.raises(ConfigurationError) as refusal:
        KeyFile.read(tmp_path / "keys")

    assert "sha256" in refusal.value.message
    assert "my-secret-key" not in refusal.value.message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", " is empty; list keys under `keys`"),
        ("keys: []", ": keys: must not be empty; add at least 1"),
        ("keys: {}", ": keys: must be a list"),
        ("- a", ": file: must be a mapping, `name: value`"),
        ("keys: [a]", ": keys.0: must be a mapping, `name: value`"),
        ("key: []", ": key: is unknown here; correct or remove it"),
        ("keys: [{id: a, tenant: t}]", ": keys.0.sha256: is missing; add it"),
        (
            "keys: [{id: a b, tenant: t, sha256: ''}]",
            ": keys.0.id: must be 1 to 64 letters, digits, dots, dashes or underscores",
        ),
        ("keys: [{id: 7, tenant: t}]", ": keys.0.id: must be a text; put it in quotes"),
        (
            "keys: [{id: a, tenant: t, sha256: 9f86}]",
            ": keys.0.sha256: must be 64 hexadecimal digits, the hash of the key: "
            'printf %s "$KEY" | sha256sum',
        ),
    ],
)
def test_a_key_file_is_refused_in_words_of_its_writer(
    content: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text(content)

    with pytest.raises(ConfigurationError) as refusal:
        KeyFile.read(path)

    assert refusal.value.message == f"key file {path}{told}"


def test_a_good_key_file_gives_callers(tmp_path: Path) -> None:
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    (tmp_path / "keys").write_text(f"keys: [{{id: a, tenant: t, sha256: '{digest}'}}]")

    assert isinstance(KeyFile.read(tmp_path / "keys").caller("test"), Caller)


@pytest.mark.parametrize(
    ("flag", "said"),
    [("--routing", "routing file"), ("--link-ca", "certificate authority")],
)
def test_a_verifier_reads_small_files_before_its_model(
    flag: str, said: str, tmp_path: Path
) -> None:
    arguments = ["--model", str(tmp_path), flag, str(tmp_path / "missing")]

    with pytest.raises(ConfigurationError, match=said):
        load(load_settings(VerifySettings, "verify", arguments))
