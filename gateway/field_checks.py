"""Checks of single request fields. Each failure names field, value, allowed range and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

from paceline.errors import InvalidRequest

EnumT = TypeVar("EnumT", bound=IntEnum)


def refusal(field: str, message: str, remedy: str) -> InvalidRequest:
    """Return the error for a field."""
    return InvalidRequest(f"{field}: {message}; {remedy}", field=field)


def check_range(field: str, value: float | None, interval: str) -> None:
    """
    Refuse a value outside an interval such as ``(0, 1]``; None and only None is unset.

    NaN lies in no interval.
    """
    if value is None:
        return
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    is_above = value >= low if interval[0] == "[" else value > low
    is_below = value <= high if interval[-1] == "]" else value < high
    if not (is_above and is_below):
        raise refusal(
            field, f"{value:g} is not in {interval}", "choose a value in the range or leave it"
        )


def check_at_most(field: str, count: int, limit: int, unit: str) -> None:
    """Refuse more than ``limit`` of something."""
    if count > limit:
        raise refusal(field, f"{count} {unit}, at most {limit}", f"send at most {limit}")


def check_positive(field: str, value: int | None) -> None:
    """Refuse zero; None is unset."""
    if value is not None and value < 1:
        raise refusal(
            field, f"{value} is not in [1, 4294967295]", "choose at least 1 or leave it unset"
        )


def check_token_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Refuse ids outside the vocabulary."""
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise refusal(
            field,
            f"token id {largest} is not in [0, {vocab_size - 1}]",
            "tokenize with this model's own tokenizer",
        )


def check_enum(field: str, value: int, kind: type[EnumT]) -> EnumT | None:
    """Return the member for a number; None for 0 (unspecified)."""
    if value == 0:
        return None
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(f"{member.name} ({member.value})" for member in kind)
        raise refusal(field, f"{value} is unknown", f"choose one of {allowed}") from None
