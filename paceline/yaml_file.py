"""YAML files that people write, JSON included: read, and told what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paceline.errors import ConfigurationError

_PLAIN_WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing; add it",
    "extra_forbidden": "is unknown here; correct or remove it",
    "too_short": "must not be empty; add at least {min_length}",
    "too_long": "is too long; at most {max_length} are possible",
    "string_type": "must be a text; put it in quotes",
    "string_too_short": "is too short; it needs at least {min_length} characters",
    "string_too_long": "is too long; at most {max_length} characters are possible",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type"), "must be a mapping, `name: value`"
    ),
}
"""By pydantic's kind of problem, where its own words name its insides."""


def read_yaml(path: Path, name: str, remedy: str) -> object:
    """
    Return what a file holds.

    Raises ``ConfigurationError``, which begins with ``name``, for a file that cannot be read, and
    with ``remedy`` for one that holds nothing: while somebody rewrites a file, it does.
    """
    content = _parsed(path, name)
    if content is None:
        raise ConfigurationError(f"{name} {path} is empty; {remedy}")
    return content


def _parsed(path: Path, name: str) -> object:
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
    problems = error.errors(include_input=False)
    # A name misspelled is also one that is missing.
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])
    where = ".".join(str(part) for part in problem["loc"]) or "file"
    return where, problem_text(problem)


def problem_text(problem: ErrorDetails) -> str:
    """Return a problem of pydantic's in the words of who wrote the value."""
    plain = _PLAIN_WORDS.get(problem["type"])
    if plain is not None:
        return plain.format_map(problem.get("ctx", {}))
    return problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
