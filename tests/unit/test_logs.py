"""Every log line says which service wrote it, on whatever thread."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import threading, structlog
from paceline.logs import configure_logging
configure_logging("gateway", style="json")
log = structlog.get_logger()
thread = threading.Thread(target=lambda: log.info("on_a_thread"))
thread.start()
thread.join()
log.info("on_the_loop", request_id="mine")
"""


def test_lines_of_all_threads_carry_the_service() -> None:
    outcome = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True)  # noqa: S603 own code
    lines = [json.loads(line) for line in outcome.stderr.splitlines()]

    assert [(line["event"], line["service"]) for line in lines] == [
        ("on_a_thread", "gateway"),
        ("on_the_loop", "gateway"),
    ]
    assert lines[1]["request_id"] == "mine"


LOUD = """
import os, structlog, sys
from paceline.logs import configure_logging
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(writer)
configure_logging("gateway", style="json")
os.close(reader)
for _ in range(3):
    structlog.get_logger().info("nobody_reads_this")
print("still here")
"""


def test_a_log_that_nobody_reads_any_more_ends_nothing() -> None:
    """What is logged last, such as the end of a request, must happen all the same."""
    outcome = subprocess.run([sys.executable, "-c", LOUD], check=True, capture_output=True)  # noqa: S603 own code

    assert outcome.stdout == b"still here\n"
