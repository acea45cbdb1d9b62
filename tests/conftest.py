"""Options of the test run: contract suites also run against services that are already there."""

from __future__ import annotations

import pytest


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
