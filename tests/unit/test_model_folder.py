"""What gateway and verifier read from a model folder."""

import hashlib
import json
from pathlib import Path

import pytest

from paceline.errors import ConfigurationError
from paceline.model_folder import default_cache_dir, read_model_folder, tokenizer_fingerprint

CONFIG = {
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def write(folder: Path, **files: object) -> Path:
    """Write each keyword as a JSON file of that name."""
    for name, contents in files.items():
        (folder / f"{name}.json").write_text(json.dumps(contents))
    return folder


def test_plain_config_is_read(tmp_path: Path) -> None:
    found = read_model_folder(write(tmp_path, config=CONFIG))

    assert found.name == tmp_path.name
    assert found.vocab_size == 1000
    assert found.context_length == 2048
    assert found.eos_token_ids == (2,)
    assert found.bos_token_id == 1
    assert found.chat_template is None


def test_nested_text_config_is_merged(tmp_path: Path) -> None:
    nested = {"eos_token_id": [5], "text_config": {**CONFIG, "vocab_size": 77}}

    found = read_model_folder(write(tmp_path, config=nested))

    assert found.vocab_size == 77
    assert found.config["max_position_embeddings"] == 2048


def test_generation_config_overrides_the_end_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path, config=CONFIG, generation_config={"eos_token_id": [1, 106]})

    assert read_model_folder(folder).eos_token_ids == (1, 106)


def test_generation_config_without_end_tokens_overrides_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, config=CONFIG, generation_config={"eos_token_id": None})

    assert read_model_folder(folder).eos_token_ids == (2,)


def test_model_without_special_tokens_has_none(tmp_path: Path) -> None:
    bare = {"vocab_size": 10, "max_position_embeddings": 16}

    found = read_model_folder(write(tmp_path, config=bare))

    assert found.eos_token_ids == ()
    assert found.bos_token_id is None


def test_chat_template_file_comes_before_the_tokenizer_config(tmp_path: Path) -> None:
    folder = write(tmp_path, config=CONFIG, tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")

    assert read_model_folder(folder).chat_template == "new"


@pytest.mark.parametrize(
    "stated",
    ["text", [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "text"}]],
)
def test_chat_template_is_found_in_the_tokenizer_config(tmp_path: Path, stated: object) -> None:
    folder = write(tmp_path, config=CONFIG, tokenizer_config={"chat_template": stated})

    assert read_model_folder(folder).chat_template == "text"


def test_special_tokens_are_read_as_text_or_object(tmp_path: Path) -> None:
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}

    found = read_model_folder(write(tmp_path, config=CONFIG, tokenizer_config=tokens))

    assert (found.bos_token, found.eos_token) == ("<s>", "</s>")


def test_manifest_names_the_model(tmp_path: Path) -> None:
    folder = write(tmp_path, config=CONFIG, paceline_manifest={"model_name": "gemma"})

    assert read_model_folder(folder).name == "gemma"


def test_missing_config_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no .*config\.json.*convert"):
        read_model_folder(tmp_path)


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ConfigurationError, match=r"config\.json holds no JSON object"):
        read_model_folder(tmp_path)


def test_config_without_vocabulary_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="states no vocab_size"):
        read_model_folder(write(tmp_path, config={"max_position_embeddings": 16}))


def test_fingerprint_is_the_hash_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")

    assert tokenizer_fingerprint(tmp_path) == hashlib.sha256(b"{}").hexdigest()


def test_fingerprint_without_tokenizer_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no .*tokenizer\.json"):
        tokenizer_fingerprint(tmp_path)


def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_CACHE_DIR", raising=False)
    assert default_cache_dir() == tmp_path / "paceline"

    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "chosen"))
    assert default_cache_dir() == tmp_path / "chosen"
