"""
The verifier's end of the socket: facts out, reports in. One worker; the newest connection counts.

Nothing here is on the way of a token: without a worker facts are dropped and counted. Ranks beyond
the first are turned away: chains that only one of them sets would tear the others apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

from paceline.errors import PacelineError
from verify_service.engines.tensorrt_llm.mailbox import CAUSES
from verify_service.engines.tensorrt_llm.wire_frames import (
    Count,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    decode,
    encode,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_BUFFERED_BYTES = 4 << 20
_READ_BYTES = 1 << 16


class SocketFolder:
    """A private folder for the socket; other users cannot reach into it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="paceline-"))

    @property
    def address(self) -> str:
        """The socket's path."""
        return str(self.path / "drafts")

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


class MailboxServer:
    """Listens for the worker. Lives on the engine's event loop."""

    def __init__(self, address: str, on_frame: Callable[[Frame], None]) -> None:
        self.counts: Counter[str] = Counter()
        """Facts and empty chains by cause, the worker's included."""
        self._address = address
        self._on_frame = on_frame
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a worker is there."""
        return self._writer is not None

    async def start(self) -> None:
        """Listen; workers keep trying until then."""
        self._server = await asyncio.start_unix_server(self._serve, self._address)

    def post(self, frame: Frame) -> None:
        """Send a frame to the worker, or drop it."""
        writer = self._writer
        if writer is None or writer.is_closing():
            self.counts["dropped_no_worker"] += 1
        elif writer.transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            self.counts["dropped_worker_slow"] += 1
        else:
            writer.write(encode(frame))

    async def aclose(self) -> None:
        """Hang up and stop listening."""
        if self._server is not None:
            self._server.close()
        if self._writer is not None:
            self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(_READ_BYTES):
                for kind, payload in frames.feed(data):
                    self._take(decode(kind, payload), writer)
        except (OSError, PacelineError) as error:
            log.warning("worker_link_failed", detail=str(error))
        finally:
            if self._writer is writer:
                self._writer = None
                log.warning("worker_disconnected")
            with contextlib.suppress(OSError):
                writer.close()

    def _take(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        match frame:
            case Hello():
                self._greet(frame, writer)
            case _ if writer is not self._writer:
                raise FrameError("a frame before the greeting")
            case Count(cause, total) if 0 <= cause < len(CAUSES):
                self.counts[f"chain_{CAUSES[cause]}"] = total
            case _:
                self._on_frame(frame)

    def _greet(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        if hello.rank != 0:
            raise FrameError(f"rank {hello.rank} is there; only one rank is served")
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        log.info("worker_connected", max_draft_tokens=hello.max_draft_tokens)
