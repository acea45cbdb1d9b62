"""``python -m gateway``."""

from __future__ import annotations

import asyncio

from gateway.server import serve
from gateway.settings import GatewaySettings
from paceline.errors import ConfigurationError
from paceline.logs import configure_logging
from paceline.settings import exit_with_usage_error, load_settings

PROGRAM = "gateway"


def main() -> None:
    """Run a gateway until it is told to stop."""
    try:
        settings = load_settings(GatewaySettings, PROGRAM)
        configure_logging(PROGRAM, settings.log_level, settings.log_format)
        asyncio.run(serve(settings))
    except ConfigurationError as error:
        exit_with_usage_error(PROGRAM, error)


if __name__ == "__main__":
    main()
