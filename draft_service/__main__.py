"""``python -m draft_service``: reads the settings and serves."""

from __future__ import annotations

import asyncio

from draft_service.server import serve
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from paceline.logs import configure_logging
from paceline.settings import exit_with_usage_error, load_settings
from paceline.standard_streams import open_standard_streams

PROGRAM = "draft_service"


def main() -> None:
    """Run the service until it is told to stop."""
    open_standard_streams()
    try:
        settings = load_settings(DraftSettings, PROGRAM)
        configure_logging(PROGRAM, settings.log_level, settings.log_format)
        asyncio.run(serve(settings))
    except ConfigurationError as error:
        exit_with_usage_error(PROGRAM, error)


if __name__ == "__main__":
    main()
