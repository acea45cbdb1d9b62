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
