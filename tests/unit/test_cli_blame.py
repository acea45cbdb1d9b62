"""What the command line makes of errors that say only that nobody can serve."""

from __future__ import annotations

import argparse
import socket

import pytest

from paceline.cli.blame import blamed
from paceline.errors import (
    EngineFailed,
    InvalidRequest,
    PacelineError,
    Unauthenticated,
    Unavailable,
)

UNHEALTHY = Unavailable(
    "connections to all backends failing; last error: ipv4:127.0.0.1:5: backend unhealthy"
)


def told(error: PacelineError, **options: object) -> str:
    """Return the message that is shown."""
    return blamed(error, argparse.Namespace(**options)).message


def test_a_gateway_that_is_not_ready_is_told_from_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        there = told(UNHEALTHY, address=address)
        resolved = told(UNHEALTHY, address=f"dns:///{address}")
        said = told(Unavailable("no verifier is ready"), address=address)
    gone = told(UNHEALTHY, address=address)

    assert there == (
        f"the gateway at {address} is not ready: `paceline doctor --gateway {address}` says why"
    )
    assert resolved.startswith(f"the gateway at dns:///{address} is not ready")
    assert said == "no verifier is ready"
    assert gone.startswith(f"no gateway answers at {address}: start one with")


@pytest.mark.parametrize(
    ("field", "message", "shown"),
    [
        ("sampling.top_p", "sampling.top_p: 2 is not in (0, 1]", "--top-p: 2 is not in (0, 1]"),
        ("chat.messages[0].role", "chat.messages[0].role: no", "the prompt: no"),
        ("text", "text: the prompt is empty; send one", "the prompt is empty; send one"),
        ("text", "text: 9 bytes, at most 8", "the prompt: 9 bytes, at most 8"),
        ("structured_output", "it has no way out", "it has no way out"),
        ("top_p", "give either", "--top-p: give either"),
        ("", "something", "something"),
    ],
)
def test_a_field_is_told_as_the_flag_that_filled_it(field: str, message: str, shown: str) -> None:
    assert told(InvalidRequest(message, field=field), top_p=2.0, prompt="hi") == shown


def test_other_errors_and_commands_without_the_flag_are_left_as_they_are() -> None:
    fault = EngineFailed("a fault", field="sampling.top_p")
    refused = InvalidRequest("sampling.top_p: 2 is not in (0, 1]", field="sampling.top_p")

    assert blamed(fault, argparse.Namespace(top_p=1)) is fault
    assert blamed(refused, argparse.Namespace()) is refused


def test_a_missing_key_is_told_as_the_flag_that_names_it() -> None:
    error = Unauthenticated("a credential is needed: send metadata `authorization: Bearer <key>`")

    assert told(error) == (
        "a credential is needed; give a valid key with --api-key-file FILE or PACELINE_API_KEY"
    )
