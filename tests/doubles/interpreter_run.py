"""Runs a test file's inner tests again where Triton's interpreter takes the place of a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INNER = os.environ.get("TRITON_INTERPRET") == "1"

needs_triton = pytest.mark.skipif(
    not HAS_TRITON or IS_INNER, reason="triton comes with GPU builds of torch"
)
"""Of the test that starts the inner run."""
needs_interpreter = pytest.mark.skipif(
    not (HAS_TRITON and IS_INNER), reason="needs TRITON_INTERPRET=1"
)
"""Of the inner tests, whose names start with ``test_inner``."""


def run_inner_tests(file: str, *, num_tests: int) -> None:
    """Run a file's inner tests in another process: triton chooses when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", file, "-k", "inner"]
    outcome = subprocess.run(  # noqa: S603 ourselves
        command,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, json.dumps(outcome.stdout[-3000:])
    assert f"{num_tests} passed" in outcome.stdout
