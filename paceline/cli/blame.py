"""Errors in the words of the command line: flags where the gateway names fields of a request."""

from __future__ import annotations

import argparse

from paceline.cli.access import KEY_REMEDY
from paceline.cli.address import answers
from paceline.cli.tls_hint import access_shown, tls_hint
from paceline.errors import (
    InvalidRequest,
    NotFound,
    PacelineError,
    Unauthenticated,
    Unavailable,
)

_PROMPT_FIELDS = frozenset({"text", "chat", "token_ids", "messages", "prompt"})


def blamed(error: PacelineError, options: argparse.Namespace) -> PacelineError:
    """Return the error to show: the same, but with the flag or the address at fault in it."""
    match error:
        case Unavailable():
            return _unavailable(error, options)
        case Unauthenticated():
            told = error.message.partition(": send metadata")[0]
            return Unauthenticated(f"{told}; {KEY_REMEDY}", reason=error.reason)
        case InvalidRequest() | NotFound():
            return _of_a_flag(error, options)
        case _:
            return error


def _unavailable(error: Unavailable, options: argparse.Namespace) -> Unavailable:
    address = getattr(options, "address", "")
    if not address:
        return error
    if not answers(address):
        return Unavailable(
            f"no gateway answers at {address}: start one with `paceline up --demo`, "
            "or name another with --address"
        )
    if "backend unhealthy" in error.message:
        return Unavailable(
            f"the gateway at {address} is not ready: `paceline doctor --gateway {address}` says why"
        )
    is_of_a_server = "cannot be reached" not in error.message
    hint = "" if is_of_a_server else tls_hint(address, access_shown(options))
    return Unavailable(f"the gateway at {address} does not answer: {hint}") if hint else error


def _of_a_flag(error: InvalidRequest | NotFound, options: argparse.Namespace) -> PacelineError:
    flag = _flag(error.field, options)
    if not flag:
        return error
    rest = error.message.removeprefix(error.field)
    message = f"{flag}{rest}" if rest != error.message else f"{flag}: {error.message}"
    message = message.removeprefix(f"{flag}: ") if rest.startswith(f": {flag} ") else message
    return type(error)(message, field=error.field, reason=error.reason)


def _flag(field: str, options: argparse.Namespace) -> str:
    """Return the flag for a field such as ``sampling.top_p``; empty if the command has none."""
    if field.partition(".")[0].partition("[")[0] in _PROMPT_FIELDS:
        return "the prompt" if "prompt" in vars(options) else ""
    name = field.rpartition(".")[2].partition("[")[0]
    return f"--{name.replace('_', '-')}" if name in vars(options) else ""
