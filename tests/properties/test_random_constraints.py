"""Random schemas and regular expressions on a real model: valid, and the same with drafts."""

from __future__ import annotations

from random import Random

import pytest

from bench.constraints import is_valid, random_regex, random_schema
from bench.structured import StructuredRuns
from paceline.v1 import types_pb2
from verify_service.engine import verification
from verify_service.engine.row_choices import DrawnChoices


def _rng(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - seeded on purpose


@pytest.mark.timeout(300)
def test_output_is_valid_and_the_same_with_forced_and_other_drafts() -> None:
    """B080-B082, B084: drafts that break the grammar, go beyond its end, or are its own."""
    made = StructuredRuns().measure(_rng(3), 8)

    assert made.num_invalid == 0
    assert made.num_different == 0
    assert made.forced_length > made.plain_length == 1.0


class NeverHere(DrawnChoices):
    """Choices of a device that is always busy a little longer."""

    def is_here(self) -> bool:
        """Return False."""
        return False


@pytest.mark.timeout(300)
def test_masks_asked_for_while_a_device_computes_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B082: of every node then, also of those that no walk comes to."""
    monkeypatch.setattr(verification, "choose_all", NeverHere)

    made = StructuredRuns().measure(_rng(4), 4)

    assert made.num_invalid == 0
    assert made.num_different == 0


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ('{"type": "boolean"}', "true", "1"),
        ('{"type": "integer", "minimum": 2, "maximum": 4}', "3", "5"),
        ('{"type": "integer", "minimum": 0, "maximum": 4}', "1", "true"),
        ('{"type": "string", "minLength": 1, "maxLength": 2}', '"ab"', '"abc"'),
        ('{"type": "string", "pattern": "^a[0-9]$"}', '"a1"', '"b1"'),
        ('{"enum": ["a", 1, null]}', "null", "true"),
        ('{"const": 7}', "7", "8"),
        ('{"anyOf": [{"type": "null"}, {"type": "boolean"}]}', "null", '"x"'),
        (
            '{"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}',
            "[null]",
            "[]",
        ),
        (
            '{"$defs": {"part": {"type": "null"}}, "type": "object", "properties": '
            '{"a": {"$ref": "#/$defs/part"}}, "required": ["a"], "additionalProperties": false}',
            '{"a": null}',
            '{"a": null, "b": 1}',
        ),
    ],
)
def test_checker_tells_valid_from_invalid(schema: str, good: str, bad: str) -> None:
    constraint = types_pb2.StructuredOutput(json_schema=schema)

    assert is_valid(constraint, good)
    assert not is_valid(constraint, bad)
    assert not is_valid(constraint, good + "}")


def test_generator_is_seeded_and_varied() -> None:
    schemas = [str(random_schema(_rng(seed))) for seed in range(100)]

    assert schemas == [str(random_schema(_rng(seed))) for seed in range(100)]
    assert len(set(schemas)) > 60
    assert len({random_regex(_rng(seed)) for seed in range(50)}) > 40
