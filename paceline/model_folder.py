"""Reads what gateway and verifier must agree on from a model folder. It loads no weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import ConfigurationError

_REMEDY = "name a folder with a Hugging Face model, or make one: python -m verify_service.convert"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's description; ``path`` holds the files themselves."""

    path: Path
    name: str
    """The name that the conversion recorded, else the folder's."""
    config: Mapping[str, object] = field(repr=False)
    """``config.json``, a nested ``text_config`` merged over it."""
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    """Every id that ends a text; may be empty."""
    bos_token_id: int | None
    bos_token: str | None
    """As chat templates expect it."""
    eos_token: str | None
    chat_template: str | None = field(repr=False)
    """A Jinja template, where the model has one."""


def default_cache_dir() -> Path:
    """Return the folder for converted models: ``$PACELINE_CACHE_DIR``, else the user's cache."""
    if chosen := os.environ.get("PACELINE_CACHE_DIR"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paceline"


def read_model_folder(path: Path) -> ModelFolder:
    """Read a folder's description; raise ``ConfigurationError`` naming what is missing."""
    raw_config = _read_json(path / "config.json", required=True)
    text_config = raw_config.get("text_config")
    config = raw_config | text_config if isinstance(text_config, dict) else raw_config
    generation = _read_json(path / "generation_config.json")
    tokenizer = _read_json(path / "tokenizer_config.json")
    name = _read_json(path / "paceline_manifest.json").get("model_name")
    return ModelFolder(
        path=path,
        name=name if isinstance(name, str) else path.resolve().name,
        config=config,
        vocab_size=_required_integer(path, config, "vocab_size"),
        context_length=_required_integer(path, config, "max_position_embeddings"),
        eos_token_ids=_ids(generation, config, "eos_token_id"),
        bos_token_id=next(iter(_ids(generation, config, "bos_token_id")), None),
        bos_token=_token_text(tokenizer.get("bos_token")),
        eos_token=_token_text(tokenizer.get("eos_token")),
        chat_template=_chat_template(path, tokenizer),
    )


def tokenizer_fingerprint(folder: Path) -> str:
    """Return the SHA-256 of the folder's ``tokenizer.json``, in hexadecimal."""
    return hashlib.sha256(_read_bytes(folder / "tokenizer.json")).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"there is no {path}; {_REMEDY}") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from error


def _read_json(path: Path, *, required: bool = False) -> dict[str, object]:
    if not required and not path.exists():
        return {}
    try:
        contents = json.loads(_read_bytes(path))
    except (ValueError, RecursionError):
        contents = None
    if not isinstance(contents, dict):
        raise ConfigurationError(f"{path} holds no JSON object; restore the file")
    return contents


def _required_integer(path: Path, config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int):
        raise ConfigurationError(f"{path / 'config.json'} states no {key}; add it to the file")
    return value


def _ids(
    generation: Mapping[str, object], config: Mapping[str, object], key: str
) -> tuple[int, ...]:
    """One id, or a list of them; the generation config has the last word."""
    stated = generation.get(key)
    if stated is None:
        stated = config.get(key)
    items = stated if isinstance(stated, list) else [stated]
    return tuple(item for item in items if isinstance(item, int))


def _token_text(token: object) -> str | None:
    """A special token is written as its text or as an object around it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _chat_template(path: Path, tokenizer: Mapping[str, object]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return _read_bytes(file).decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file} is not UTF-8 text; restore the file") from None
    template = tokenizer.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if item}
        template = named.get("default")
    return template if isinstance(template, str) else None
