"""Standard input, output and error of a process, whatever it was started with."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

_NUM_STREAMS: Final = 3


def open_standard_streams() -> None:
    """
    Open the null device in place of each standard stream that the process was started without.

    Otherwise the first sockets would take those numbers: what is printed would go to a peer, and
    libuv aborts a process that closes them. Comes before anything that opens a file for good.
    """
    descriptor = 0
    while descriptor < _NUM_STREAMS:
        descriptor = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(descriptor, descriptor < _NUM_STREAMS)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


class LastingStream(io.TextIOBase):
    """
    Writes to a stream for as long as somebody reads it, and then to nobody.

    A log whose reader has gone must not end the requests that are logged.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing."""
        with suppress(OSError, ValueError):
            self._stream.flush()
