"""Flags that say what the whole answer has to look like."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.text_files import text_of
from paceline.generation_request import StructuredOptions


def add_constraint_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; a request has at most one constraint."""
    constraint = parser.add_mutually_exclusive_group()
    constraint.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="the answer is JSON of this JSON Schema"
    )
    constraint.add_argument("--regex", metavar="PATTERN", help="the whole answer matches this")
    constraint.add_argument(
        "--grammar", type=Path, metavar="FILE", help="the answer is of this Lark grammar"
    )
    constraint.add_argument(
        "--choice", action="append", metavar="TEXT", help="the answer is one of these; repeatable"
    )


def constraint_of(options: argparse.Namespace) -> StructuredOptions:
    """Return what the flags ask for; raises ``ConfigurationError`` for an unreadable file."""
    return StructuredOptions(
        json_schema=_text(options.json_schema, "--json-schema"),
        regex=options.regex,
        grammar=_text(options.grammar, "--grammar"),
        choice=options.choice,
    )


def constraint_flag(options: argparse.Namespace) -> str:
    """Return the flag that constrains the answer; empty if none does."""
    given = [name for name in StructuredOptions.__annotations__ if vars(options)[name] is not None]
    return f"--{given[0].replace('_', '-')}" if given else ""


def _text(path: Path | None, option: str) -> str | None:
    return None if path is None else text_of(path, option)
