"""Where the KV of a request's prompt may be at hand: requests alike go to one verifier."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import Final

from gateway.generation import SequenceRequest

PREFIX_TOKENS: Final = 128
"""Of a prompt's beginning that others may share; computing less takes about one step."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """Requests of one key go to the same verifier from every gateway, while that is not busier."""

    key: str = ""
    """Empty: they go anywhere."""
    ratio: float = 1.0
    slack: int = 0

    def tolerates(self, own_load: int, least_load: int) -> bool:
        """Return whether the verifier of the key may be used, another having the least load."""
        return own_load <= self.ratio * least_load + self.slack

    def rank(self, address: str) -> bytes:
        """Return the order of an address for the key; the highest one is the key's own."""
        return hashlib.blake2b(f"{self.key}\0{address}".encode(), digest_size=8).digest()


ANYWHERE: Final = Affinity()


def affinity_of(session_id: str, sequence: SequenceRequest) -> Affinity:
    """
    Return the affinity of a session, or else of the beginning of a prompt.

    A session's whole history is worth more patience than a beginning that many may share, such as
    instructions: those would all end at one verifier.
    """
    if session_id:
        return Affinity(session_id, ratio=2.0, slack=4)
    if len(sequence.prompt_token_ids) < PREFIX_TOKENS:
        return ANYWHERE
    owner = f"{sequence.tenant}\0{sequence.cache_salt}\0".encode()
    beginning = array("Q", sequence.prompt_token_ids[:PREFIX_TOKENS]).tobytes()
    return Affinity(hashlib.blake2b(owner + beginning, digest_size=8).hexdigest(), slack=2)
