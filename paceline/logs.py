"""Structured logging: JSON lines when not on a terminal. Prompts and token text never go here."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO, cast

import structlog

from paceline.standard_streams import LastingStream

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]


def configure_logging(service: str, level: LogLevel = "info", style: LogFormat = "auto") -> None:
    """Send log lines of this process to standard error, each with the service's name."""
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        # Its default shows the values of local variables, prompts among them.
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _named(service),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *((structlog.processors.format_exc_info,) if as_json else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LastingStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def _named(service: str) -> structlog.typing.Processor:
    # No context variable: engines log on threads of their own, which have another context.
    def add(
        logger: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        del logger, method
        event["service"] = service
        return event

    return add
