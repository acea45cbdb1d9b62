"""Conversions between the shared values and their messages; protobuf stops here."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from paceline.tree import TokenTree
from paceline.v1 import types_pb2

PROTOCOL_VERSION = 1
"""The internal protocol that this build speaks (``ProtocolRange``)."""

_MAX_DURATION_SECONDS = 315_576_000_000.0
"""The longest ``Duration`` that there is, by its definition: 10,000 years."""


def tree_to_proto(tree: TokenTree) -> types_pb2.TokenTree:
    """Return the message of a tree."""
    return types_pb2.TokenTree(
        token_ids=tree.token_ids, parents=tree.parents, log_probs=tree.log_probs
    )


def tree_from_proto(message: types_pb2.TokenTree) -> TokenTree:
    """Return the tree of a message; raises ``InvalidTree`` when it holds none."""
    return TokenTree(tuple(message.token_ids), tuple(message.parents), tuple(message.log_probs))


def protocol_range() -> types_pb2.ProtocolRange:
    """Return the protocol versions that this build speaks."""
    return types_pb2.ProtocolRange(min_version=PROTOCOL_VERSION, max_version=PROTOCOL_VERSION)


def speaks_our_protocol(peer: types_pb2.ProtocolRange) -> bool:
    """Return whether a peer's range holds this build's version."""
    return peer.min_version <= PROTOCOL_VERSION <= peer.max_version


def duration_to_proto(seconds: float) -> Duration:
    """Return a duration message, the nearest one that there is."""
    message = Duration()
    # In this order NaN becomes 0.
    message.FromTimedelta(timedelta(seconds=min(max(0.0, seconds), _MAX_DURATION_SECONDS)))
    return message


def duration_from_proto(message: Duration) -> float:
    """Return the seconds of a duration message."""
    return float(message.seconds) + message.nanos / 1e9
