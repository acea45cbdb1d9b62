"""How a call is named in logs, traces and errors: its request id and its trace context."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

from paceline.trace_context import TRACEPARENT, TraceContext

REQUEST_ID_TRAILER: Final = "paceline-request-id"
"""Trailer that tells every caller its request id."""

REQUEST_ID_HEADER: Final = "x-request-id"
"""Metadata by which proxies and applications choose it."""

_PRINTABLE: Final = re.compile(r"[!-~]{1,128}")


def request_id_of(chosen: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return the id that the message chose, else the metadata's, else a new one."""
    from_metadata = [value for key, value in metadata or () if key == REQUEST_ID_HEADER]
    for candidate in (chosen, *from_metadata[:1]):
        if isinstance(candidate, str) and _PRINTABLE.fullmatch(candidate):
            return candidate
    return uuid.uuid4().hex


def identity_trailers(request_id: str, trace: TraceContext) -> tuple[tuple[str, str], ...]:
    """Return the trailers that tell a caller how its call is named here."""
    traced = ((TRACEPARENT, trace.traceparent),) if trace.traceparent else ()
    return ((REQUEST_ID_TRAILER, request_id), *traced)
