"""Options of the test run: contract suites also run against services that are already there."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# A shared machine may stall for seconds: examples have no deadline, tests have (pytest-timeout).
settings.register_profile(
    "paceline",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paceline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the addresses of foreign services."""
    parser.addoption(
        "--draft-address",
        metavar="HOST:PORT",
        help="run the draft service's contract suite against this service",
    )
    parser.addoption(
        "--verify-address",
        metavar="HOST:PORT",
        help="run the verify service's contract suite against this service",
    )
