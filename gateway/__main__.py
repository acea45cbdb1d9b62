"""``python -m gateway``."""

from __future__ import annotations

import asyncio

import uvloop

from gateway.server import ConfigFile, serve
from gateway.settings import GatewaySettings
from paceline.errors import ConfigurationError
from paceline.logs import configure_logging
from paceline.settings import config_path, exit_with_usage_error, load_settings
from paceline.standard_streams import open_standard_streams

PROGRAM = "gateway"


def main() -> None:
    """Run a gateway until it is told to stop."""
    open_standard_streams()
    try:
        settings = _settings()
        configure_logging(PROGRAM, settings.log_level, settings.log_format)
        path = config_path()
        config = ConfigFile(path, _settings) if path else None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, config))
    except ConfigurationError as error:
        exit_with_usage_error(PROGRAM, error)


def _settings() -> GatewaySettings:
    return load_settings(GatewaySettings, PROGRAM)


if __name__ == "__main__":
    main()
