"""
The jinja2 environment of chat templates: no side effects, and bounds on what one rendering costs.

A template comes with a model, so it is foreign code; what it is fed comes from clients.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS: Final = 2.0
MAX_RANGE: Final = 100_000
"""Turns of all loops over ``range`` in one rendering."""
MAX_REPEATED: Final = 1_000_000
"""Largest result of a multiplication, and longest text or list that one makes."""

_STEPS_BETWEEN_LOOKS: Final = 64


class _Budget:
    def __init__(self, max_characters: int) -> None:
        self.characters = max_characters
        self.turns = MAX_RANGE
        self.until = time.monotonic() + MAX_SECONDS
        self._steps = 0

    def check_time(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0 and time.monotonic() > self.until:
            raise SecurityError(f"it takes longer than {MAX_SECONDS:g} s")


_BUDGET: ContextVar[_Budget | None] = ContextVar("template_budget", default=None)


def _check_time() -> None:
    # Without a budget the template is being compiled.
    if (budget := _BUDGET.get()) is not None:
        budget.check_time()


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which multiplying and counting are bounded too."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = _bounded_range
        self.filters["tojson"] = _to_json
        del self.filters["center"]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply what stays small; refuse powers and formats, which can be as long as told."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"{operator} is not available")
        if operator == "*" and _size(left) * _size(right) > MAX_REPEATED:
            raise SecurityError(f"a multiplication gives more than {MAX_REPEATED}")
        return super().call_binop(context, operator, left, right)

    def call(self, *arguments: Any, **named: Any) -> Any:
        """Call a function, unless the time is over or an argument asks for a lot."""
        _check_time()
        if any(isinstance(given, int) and given > MAX_REPEATED for given in arguments):
            raise SecurityError(f"a function is called with more than {MAX_REPEATED}")
        return super().call(*arguments, **named)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look an attribute up, unless the time is over."""
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look an item up, unless the time is over."""
        _check_time()
        return super().getitem(obj, argument)


def render_bounded(template: Template, max_characters: int, **variables: object) -> str:
    """Return the text; raises ``TemplateError`` beyond the bounds."""
    budget = _Budget(max_characters)
    token = _BUDGET.set(budget)
    try:
        return "".join(_counted(template.generate(**variables), budget))
    finally:
        _BUDGET.reset(token)


def _counted(pieces: Iterable[str], budget: _Budget) -> Iterable[str]:
    for piece in pieces:
        budget.characters -= len(piece)
        if budget.characters < 0:
            raise SecurityError("the text is longer than the gateway allows")
        budget.check_time()
        yield piece


def _bounded_range(*bounds: int) -> range:
    wanted, budget = range(*bounds), _BUDGET.get()
    turns_left = MAX_RANGE if budget is None else budget.turns
    if len(wanted) <= turns_left and budget is not None:
        budget.turns -= len(wanted)
    if len(wanted) > turns_left:
        raise SecurityError(f"loops over range turn more than {MAX_RANGE} times")
    return wanted


def _size(value: object) -> int:
    if isinstance(value, int | float):
        return int(min(abs(value), MAX_REPEATED + 1)) if value == value else 1
    try:
        return len(value)  # type: ignore[arg-type]  # what has no length raises
    except TypeError:
        return 1


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
