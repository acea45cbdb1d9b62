"""The command ``paceline``: its parser and the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from paceline.cli import bench, doctor, generate, lossless, up
from paceline.cli.blame import blamed
from paceline.cli.terminal import say
from paceline.errors import ConfigurationError, InvalidRequest, NotFound, PacelineError
from paceline.settings import USAGE_EXIT_CODE

FAILURE_EXIT_CODE = 1
INTERRUPTED_EXIT_CODE = 130
MAX_SHOWN = 1000
"""Characters of an error: it may quote what was given."""

_SUMMARIES = {
    "up": "start gateway, draft and verify service on this machine",
    "generate": "send one prompt through a gateway",
    "bench": "measure a gateway with and without drafts",
    "lossless": "show that drafting changes no token of a deployment",
    "doctor": "check a deployment; say cause and fix",
}


_COMMANDS = {
    "up": up,
    "generate": generate,
    "bench": bench,
    "lossless": lossless,
    "doctor": doctor,
}


class UsageError(Exception):
    """The command line makes no sense; the message is one line."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        raise UsageError(f"{self.prog}: error: {message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 1 when it failed, 2 when it was misused."""
    if os.environ.get("PACELINE_DEBUG"):
        return _run(argv)
    try:
        return _run(argv)
    except UsageError as error:
        say(_one_line(str(error)))
        return USAGE_EXIT_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE_EXIT_CODE
    except PacelineError as error:
        say(f"paceline: error: {_one_line(error.message)}")
        is_misuse = isinstance(error, ConfigurationError | InvalidRequest | NotFound)
        return USAGE_EXIT_CODE if is_misuse else FAILURE_EXIT_CODE
    except Exception as error:
        cause = f"{type(error).__name__}: {_one_line(str(error))}"
        say(f"paceline: internal error: {cause}; PACELINE_DEBUG=1 shows where")
        return FAILURE_EXIT_CODE


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = OneLineParser(
        prog="paceline", description="Speculative decoding as services.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = _SUMMARIES[name]
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _run(argv: Sequence[str] | None) -> int:
    options, unknown = build_parser().parse_known_args(argv)
    if unknown:
        _refuse(unknown, options.command)
    try:
        return int(options.run(options))
    except PacelineError as error:
        raise blamed(error, options) from error


def _refuse(unknown: Sequence[str], command: str) -> NoReturn:
    several_words = not any(word.startswith("-") for word in unknown) and command == "generate"
    hint = " (put a prompt of several words in quotes)" if several_words else ""
    raise UsageError(
        f"paceline {command}: error: unrecognized arguments: {_one_line(' '.join(unknown))}{hint}; "
        f"see paceline {command} --help"
    )


def _version() -> str:
    try:
        return f"paceline {importlib.metadata.version('paceline')}"
    except importlib.metadata.PackageNotFoundError:
        return "paceline (not installed)"


def _one_line(text: str) -> str:
    """Return text that neither breaks a line nor steers a terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]} ..."
