"""Files that are read again when they change. What is in them is their readers' affair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from paceline.errors import PacelineError
from paceline.file_watch import FileWatch

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SourceKind(StrEnum):
    """What a gateway reads again while it runs; routing by ``paceline.routing``."""

    CREDENTIALS = "credentials"
    SETTINGS = "settings"
    ROUTING = "routing"


@dataclass(frozen=True, slots=True)
class Source:
    """Files that are read together."""

    kind: SourceKind
    watch: FileWatch
    read: Callable[[], Any]
    """Called on a thread; raises ``PacelineError`` when the files make no sense."""
    apply: Callable[[Any], None]
    """Called on the event loop with what was read."""


async def follow(
    sources: Sequence[Source], look_seconds: float, refused: MutableMapping[str, str]
) -> None:
    """
    Take up changes until cancelled.

    Files that make no sense are logged once and leave in force what was read before; meanwhile
    ``refused`` holds what is wrong with them, by the kind of source.
    """
    while True:
        await asyncio.sleep(look_seconds)
        for source in sources:
            if source.watch.has_changed():
                await _reload(source, refused)


async def _reload(source: Source, refused: MutableMapping[str, str]) -> None:
    try:
        source.apply(await asyncio.to_thread(source.read))
    except Exception as error:  # whatever a file holds, the gateway goes on with what it has
        cause = error.message if isinstance(error, PacelineError) else type(error).__name__
        refused[source.kind] = cause
        log.warning("reload_refused", source=source.kind, cause=cause)
    else:
        refused.pop(source.kind, None)
        log.info("reloaded", source=source.kind)
