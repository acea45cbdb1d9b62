"""
The worker's end of the socket: one daemon thread that connects, reads facts and writes reports.

The executor's event-loop thread only appends to a queue. A verifier that is gone costs drafts and
nothing else; the thread keeps trying to reach it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque

from paceline.errors import InvalidTree
from verify_service.engines.tensorrt_llm.mailbox import CAUSES, Mailbox
from verify_service.engines.tensorrt_llm.wire_frames import (
    Count,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    decode,
    encode,
)

RETRY_SECONDS = 0.2
COUNT_SECONDS = 1.0
MAX_UNSENT = 20_000
_READ_BYTES = 1 << 16

_open_links: dict[str, MailboxLink] = {}
_opening = threading.Lock()


class MailboxLink:
    """A mailbox and the thread that fills it."""

    def __init__(self, address: str, max_draft_tokens: int) -> None:
        self.mailbox = Mailbox(max_draft_tokens, self._send)
        self._address = address
        self._unsent: deque[Frame] = deque()
        self._told: dict[str, int] = {}
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="draft-mailbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._wake()
        self._thread.join(2.0)
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _send(self, frame: Frame) -> None:
        if len(self._unsent) >= MAX_UNSENT:
            self.mailbox.counts["unsent"] += 1
            return
        self._unsent.append(frame)
        self._wake()

    def _wake(self) -> None:
        # A full pipe means that the thread has been woken already.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(self._address)
                    self._serve(connection)
            except (OSError, FrameError):
                pass
            except Exception:  # a fault of ours must cost drafts, not this thread
                self.mailbox.counts["error"] += 1
            self._stopping.wait(RETRY_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        self._unsent.clear()
        connection.sendall(encode(Hello(_rank(), self.mailbox.max_draft_tokens)))
        told = time.monotonic()
        while not self._stopping.is_set():
            sources: list[socket.socket | int] = [connection, self._wake_read]
            ready, _, _ = select.select(sources, [], [], COUNT_SECONDS)
            if self._wake_read in ready:
                os.read(self._wake_read, _READ_BYTES)
            if connection in ready and not self._read(connection, reader):
                return
            if time.monotonic() - told >= COUNT_SECONDS:
                told = time.monotonic()
                self._count()
            self._write(connection)

    def _read(self, connection: socket.socket, reader: FrameReader) -> bool:
        data = connection.recv(_READ_BYTES)
        for kind, payload in reader.feed(data):
            try:
                self.mailbox.receive(decode(kind, payload))
            except InvalidTree:
                self.mailbox.counts["invalid_fact"] += 1
        return bool(data)

    def _write(self, connection: socket.socket) -> None:
        frames = []
        while self._unsent:
            frames.append(encode(self._unsent.popleft()))
        if frames:
            connection.sendall(b"".join(frames))

    def _count(self) -> None:
        for cause, name in enumerate(CAUSES):
            total = self.mailbox.counts[name]
            if self._told.get(name, 0) != total:
                self._told[name] = total
                self._unsent.append(Count(cause, total))


def link_at(address: str, max_draft_tokens: int) -> MailboxLink:
    """
    Return this process's link to ``address``, opened on first use.

    Drafter and resource manager find each other here: pickling does not keep their identity.
    """
    with _opening:
        link = _open_links.get(address)
        if link is None:
            link = _open_links[address] = MailboxLink(address, max_draft_tokens)
        return link


def close_link(address: str) -> None:
    """Close the link to ``address`` if it is open."""
    with _opening:
        link = _open_links.pop(address, None)
    if link is not None:
        link.close()


def _rank() -> int:
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if (value := os.environ.get(name, "")).isdigit():
            return int(value)
    return 0
