"""``python -m verify_service``: the verify service as a process, or its ``doctor``."""

from __future__ import annotations

import asyncio
import os
import sys

from paceline.errors import ConfigurationError
from paceline.logs import configure_logging
from paceline.settings import exit_with_usage_error, load_settings
from paceline.standard_streams import open_standard_streams
from paceline.tracing import check_tracing
from verify_service.settings import VerifySettings

PROGRAM = "verify_service"


def main() -> None:
    """Read the settings and serve; wrong settings end in one line and exit code 2."""
    open_standard_streams()
    if sys.argv[1:2] == ["doctor"]:
        from verify_service.doctor import run

        raise SystemExit(run(sys.argv[2:]))
    try:
        settings = load_settings(VerifySettings, PROGRAM)
        configure_logging(PROGRAM, settings.log_level, settings.log_format)
        check_tracing(settings.otlp_endpoint)
        # Read when torch loads: a thread that sleeps between two operations is late for the next,
        # one that spins for long starves other processes; this is some tens of microseconds.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "4000")
        # Loading torch takes seconds; wrong settings are told before.
        from verify_service.server import serve

        asyncio.run(serve(settings))
    except ConfigurationError as error:
        exit_with_usage_error(PROGRAM, error)


if __name__ == "__main__":
    main()
