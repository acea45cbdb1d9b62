"""YAML files that people write, JSON included: read, and told what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from paceline.errors import ConfigurationError

_PLAIN_WORDS: Final = {
    "Field required": "is missing; add it",
    "Extra inputs are not permitted": "is unknown here; correct or remove it",
}


def read_yaml(path: Path, name: str) -> object:
    """
    Return what a file holds, None if that is nothing.

    Raises ``ConfigurationError``, which begins with ``name``, for a file that cannot be read.
    """
    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
        return content
    except OSError as error:
        raise ConfigurationError(f"{name} {path}: {error.strerror}; correct the path") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name} {path} is not UTF-8 text; replace the file") from None
    except yaml.MarkedYAMLError as error:
        mark, said = error.problem_mark, error.problem or "it cannot be parsed"
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{name} {path} is not YAML{where}: {said}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A value that looks like a date and is none; brackets without end; a forbidden character.
        problem = " ".join(str(error).split())
        raise ConfigurationError(f"{name} {path} is not YAML: {problem}") from None


def first_problem(error: ValidationError) -> tuple[str, str]:
    """
    Return where the first problem of a file is, and what it is, without the value.

    Whoever wrote a secret in the wrong place must not find it in a log.
    """
    problem = error.errors(include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "file"
    return where, problem_text(problem["msg"])


def problem_text(message: str) -> str:
    """Return pydantic's words in those of a file: it has lists, and no tuples."""
    if message in _PLAIN_WORDS:
        return _PLAIN_WORDS[message]
    return message.removeprefix("Value error, ").replace("valid tuple", "list")
