"""
Paceline's shared package and public client.

The names below load on first use: importing ``paceline.tree`` or the like pulls in no transport.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.async_client import AsyncClient as AsyncClient
    from paceline.client import Client as Client
    from paceline.errors import PacelineError as PacelineError
    from paceline.events import Delta as Delta
    from paceline.events import Event as Event
    from paceline.events import Finished as Finished
    from paceline.events import FinishReason as FinishReason
    from paceline.events import Generation as Generation
    from paceline.events import Model as Model
    from paceline.events import Started as Started
    from paceline.events import Summary as Summary
    from paceline.generation_request import GenerationOptions as GenerationOptions
    from paceline.tls import DialTls as DialTls

_HOMES = {
    "AsyncClient": "paceline.async_client",
    "Client": "paceline.client",
    "Delta": "paceline.events",
    "DialTls": "paceline.tls",
    "Event": "paceline.events",
    "FinishReason": "paceline.events",
    "Finished": "paceline.events",
    "Generation": "paceline.events",
    "GenerationOptions": "paceline.generation_request",
    "Model": "paceline.events",
    "PacelineError": "paceline.errors",
    "Started": "paceline.events",
    "Summary": "paceline.events",
}

__all__ = [
    "AsyncClient",
    "Client",
    "Delta",
    "DialTls",
    "Event",
    "FinishReason",
    "Finished",
    "Generation",
    "GenerationOptions",
    "Model",
    "PacelineError",
    "Started",
    "Summary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
