"""Small random JSON Schemas and regular expressions, and a checker that knows what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from paceline.v1 import types_pb2

Schema = Mapping[str, Any]

_KEYS: Final = ("id", "name", "tags", "ok", "size", "kind")
_WORDS: Final = ("red", "green", "blue", "import", "return", "left", "right")


def random_constraint(rng: Random) -> types_pb2.StructuredOutput:
    """Return a schema two times of three, else a regular expression."""
    if rng.random() < 2 / 3:
        return types_pb2.StructuredOutput(json_schema=json.dumps(random_schema(rng)))
    return types_pb2.StructuredOutput(regex=random_regex(rng))


def is_valid(constraint: types_pb2.StructuredOutput, text: str) -> bool:
    """Return whether a text is what the constraint asks for."""
    if constraint.WhichOneof("constraint") == "regex":
        return re.fullmatch(constraint.regex, text) is not None
    schema = json.loads(constraint.json_schema)
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return fits(value, schema, schema.get("$defs", {}))


def random_regex(rng: Random) -> str:
    """Return an expression that cannot match for ever."""
    return "".join(_regex_piece(rng) for _ in range(rng.randint(1, 4)))


def random_schema(rng: Random) -> Schema:
    """Return a schema whose values are all small, some of its parts by reference."""
    schema = dict(_schema(rng, depth=2))
    if rng.random() < 0.25:
        target = _leaf(rng)
        return {
            "$defs": {"part": target},
            "type": "object",
            "properties": {"first": {"$ref": "#/$defs/part"}, "rest": schema},
            "required": ["first", "rest"],
            "additionalProperties": False,
        }
    return schema


def fits(value: object, schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    """Return whether a value is valid, for the keywords that ``random_schema`` uses."""
    if "$ref" in schema:
        return fits(value, definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    if "anyOf" in schema:
        return any(fits(value, each, definitions) for each in schema["anyOf"])
    if "enum" in schema:
        return any(value == each and type(value) is type(each) for each in schema["enum"])
    if "const" in schema:
        return bool(value == schema["const"])
    return _CHECKS[schema["type"]](value, schema, definitions)


def _regex_piece(rng: Random) -> str:
    low = rng.randint(1, 3)
    return rng.choice(
        (
            rng.choice(_WORDS),
            f"[a-f]{{{low},{low + rng.randint(0, 3)}}}",
            f"[0-9]{{{low}}}",
            f"({'|'.join(rng.sample(_WORDS, 3))})",
            f"({rng.choice(_WORDS)})?",
            f"-{rng.choice(('[A-Z]', 'x', '[^a-z0-9 ]'))}",
        )
    )


def _schema(rng: Random, depth: int) -> Schema:
    if depth == 0 or rng.random() < 0.25:
        return _leaf(rng)
    kind = rng.random()
    if kind < 0.55:
        return _object(rng, depth)
    if kind < 0.75:
        least = rng.randint(0, 1)
        return {
            "type": "array",
            "items": _schema(rng, depth - 1),
            "minItems": least,
            "maxItems": least + rng.randint(0, 2),
        }
    if kind < 0.85:
        return {"anyOf": [_leaf(rng), _object(rng, depth)]}
    return _leaf(rng)


def _object(rng: Random, depth: int) -> Schema:
    names = rng.sample(_KEYS, rng.randint(0, 3))
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _leaf(rng: Random) -> Schema:
    low = rng.randint(-9, 40)
    return rng.choice(
        (
            {"type": "boolean"},
            {"type": "null"},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 60)},
            {"type": "string", "minLength": low % 3, "maxLength": low % 3 + rng.randint(0, 5)},
            {"type": "string", "pattern": f"^{random_regex(rng)}$"},
            {"enum": [*rng.sample(_WORDS, 2), rng.randint(0, 9), None]},
            {"const": rng.choice((*_WORDS, 7))},
        )
    )


def _is_number(value: object, schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return bool(schema["minimum"] <= value <= schema["maximum"])


def _is_string(value: object, schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    if not isinstance(value, str):
        return False
    if "pattern" in schema:
        return re.search(schema["pattern"], value) is not None
    return bool(schema["minLength"] <= len(value) <= schema["maxLength"])


def _is_array(value: object, schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    if not isinstance(value, list):
        return False
    is_long_enough = schema["minItems"] <= len(value) <= schema["maxItems"]
    return is_long_enough and all(fits(item, schema["items"], definitions) for item in value)


def _is_object(value: object, schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    if not isinstance(value, dict):
        return False
    properties: Mapping[str, Schema] = schema["properties"]
    required: Sequence[str] = schema["required"]
    return all(name in value for name in required) and all(
        name in properties and fits(item, properties[name], definitions)
        for name, item in value.items()
    )


_CHECKS: Final[Mapping[str, Callable[[object, Schema, Mapping[str, Schema]], bool]]] = {
    "boolean": lambda value, schema, definitions: isinstance(value, bool),
    "null": lambda value, schema, definitions: value is None,
    "integer": _is_number,
    "string": _is_string,
    "array": _is_array,
    "object": _is_object,
}
