"""What a fault writes to the log: where it happened, never what was in memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import structlog
from paceline.logs import configure_logging

def serve(prompt):
    return 1 // 0

configure_logging("gateway", "info", {style!r})
try:
    serve("prompt-of-" + "a-user")
except ZeroDivisionError:
    structlog.get_logger().exception("call_failed", rpc="Generate")
"""


@pytest.mark.parametrize("style", ["json", "console"])
def test_an_unforeseen_fault_shows_no_local_variables(style: str) -> None:
    done = subprocess.run(  # noqa: S603 own code
        [sys.executable, "-c", SCRIPT.format(style=style)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "ZeroDivisionError" in done.stderr
    assert "call_failed" in done.stderr
    assert "prompt-of-a-user" not in done.stderr
