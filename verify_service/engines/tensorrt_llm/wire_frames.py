"""
Frames between the verifier and the worker process, over a Unix socket on one machine.

A frame is its length, its kind and 64-bit integers; a fact carries log-probabilities behind them.
Byte order is the machine's own: both ends are on it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

from paceline.errors import PacelineError
from paceline.tree import TokenTree

_HEADER = struct.Struct("=IB")
MAX_FRAME_BYTES = 1 << 20


class FrameError(PacelineError):
    """Bytes that are no frame; the connection is of no use any more."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Worker to verifier: who is there."""

    rank: int
    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Fact:
    """Verifier to worker: likely continuations of a request at a committed length."""

    client_id: int
    base_len: int
    tree: TokenTree


@dataclass(frozen=True, slots=True)
class Limit:
    """Verifier to worker: forget what was drafted so far; draft at most this many from now on."""

    client_id: int
    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Verifier to worker: the request is over."""

    client_id: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Worker to verifier, before a forward pass: how long a chain it verifies, padding excluded."""

    client_id: int
    base_len: int
    num_drafted: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Worker to verifier, after a step: what it added to a request."""

    client_id: int
    base_len: int
    num_accepted: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """Worker to verifier: the executor freed a request: finished, cancelled, failed or paused."""

    client_id: int


@dataclass(frozen=True, slots=True)
class Count:
    """Worker to verifier: how often a cause left a chain empty so far; see ``mailbox.CAUSES``."""

    cause: int
    total: int


Frame = Hello | Fact | Limit | Forget | Placed | Committed | Closed | Count
_KINDS: tuple[Callable[..., Frame], ...] = (
    Hello, Fact, Limit, Forget, Placed, Committed, Closed, Count,
)  # fmt: skip


def encode(frame: Frame) -> bytes:
    """Return a frame's bytes."""
    floats = array("f")
    match frame:
        case Fact(client_id, base_len, tree):
            numbers = [client_id, base_len, tree.num_nodes, *tree.token_ids, *tree.parents]
            floats.extend(tree.log_probs)
        case Committed(client_id, base_len, num_accepted, token_ids):
            numbers = [client_id, base_len, num_accepted, *token_ids]
        case _:
            numbers = list(astuple(frame))
    payload = array("q", numbers).tobytes() + floats.tobytes()
    return _HEADER.pack(len(payload), _KINDS.index(type(frame))) + payload


def decode(kind: int, payload: bytes) -> Frame:
    """Return the frame of a payload; raises ``FrameError``, or ``InvalidTree`` for a bad fact."""
    if kind >= len(_KINDS):
        raise FrameError(f"unknown frame kind {kind}")
    try:
        if _KINDS[kind] is Fact:
            return _decode_fact(payload)
        numbers = array("q", payload).tolist()
        if _KINDS[kind] is Committed:
            client_id, base_len, num_accepted, *token_ids = numbers
            return Committed(client_id, base_len, num_accepted, tuple(token_ids))
        return _KINDS[kind](*numbers)
    except (ValueError, TypeError) as error:
        raise FrameError(f"a frame of kind {kind} with {len(payload)} bytes") from error


def _decode_fact(payload: bytes) -> Fact:
    client_id, base_len, num_nodes = array("q", payload[:24]).tolist()
    integers = array("q", payload[24 : 24 + 16 * num_nodes]).tolist()
    # float32 rounds upwards too: what was at most 0 stays so.
    log_probs = array("f", payload[24 + 16 * num_nodes :]).tolist()
    tree = TokenTree(tuple(integers[:num_nodes]), tuple(integers[num_nodes:]), tuple(log_probs))
    return Fact(client_id, base_len, tree)


class FrameReader:
    """Turns a byte stream back into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Add bytes and yield every complete frame's kind and payload; raises ``FrameError``."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload
