"""
Where the latest tokens of a sequence have occurred before: an incremental index of n-grams.

It is a set of hash chains as in LZ77 compressors, one for each order 1, 2, 4, ...: a new token
costs one step per order, however long the sequence is, and finding the earlier occurrences of the
current n-gram starts at a link of the current position. It knows nothing of probabilities.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SEPARATOR = 0xFFFFFFFF
"""Stands between two texts in the index; equals no token id."""

_NO_POSITION = -1
_MASK16 = 0xFFFF
_MASK32 = 0xFFFFFFFF
_MULTIPLIER = 0x9E3779B1
_FOLD = 0x85EBCA6B
_BULK_LENGTH = 96
"""From this many tokens on, appending in bulk with numpy is faster than one by one."""

_HEADS_AHEAD = 2048
_MAX_LOAD = 4
_STEPS_PER_CANDIDATE = 4


class Match(NamedTuple):
    """
    An earlier occurrence of the latest tokens.

    The last ``length`` tokens also stand right before ``position``.
    """

    length: int
    position: int
    resumption: int = 0


class _HashChain:
    """The n-grams of one order; entries with equal hashes are linked, the latest first."""

    __slots__ = ("hashes", "heads", "mask", "order", "previous")

    def __init__(self, order: int, expected_len: int) -> None:
        self.order = order
        self.hashes = array("I")
        self.previous = array("i")
        self.mask = (1 << max(expected_len + _HEADS_AHEAD, 1).bit_length()) - 1
        self.heads = array("i", (_NO_POSITION,)) * (self.mask + 1)

    def append(self, position: int, hashed: int) -> None:
        """Link the n-gram that ends at ``position``."""
        self.hashes.append(hashed)
        if position + 1 < self.order:
            self.previous.append(_NO_POSITION)
            return
        bucket = hashed & self.mask
        self.previous.append(self.heads[bucket])
        self.heads[bucket] = position

    def extend(self, start: int, hashed: NDArray[np.uint32]) -> None:
        """Link the n-grams that end at ``start`` and at the positions after it."""
        self.hashes.frombytes(hashed.tobytes())
        skipped = min(max(self.order - 1 - start, 0), len(hashed))
        self.previous.frombytes(np.full(skipped, _NO_POSITION, np.int32).tobytes())
        self.previous.frombytes(self._link(start + skipped, hashed[skipped:]).tobytes())

    def grow(self) -> None:
        """Give the chain more buckets, so that few entries share one."""
        self.mask = self.mask * 4 + 3
        self.heads = array("i", (_NO_POSITION,)) * (self.mask + 1)
        skipped = self.order - 1
        linked = self._link(skipped, np.frombuffer(self.hashes, np.uint32)[skipped:])
        self.previous = self.previous[:skipped]
        self.previous.frombytes(linked.tobytes())

    def _link(self, start: int, hashed: NDArray[np.uint32]) -> NDArray[np.int32]:
        if len(hashed) == 0:
            return np.empty(0, np.int32)
        heads = np.frombuffer(self.heads, np.int32)
        buckets = hashed & np.uint32(self.mask)
        # Numbers of 16 bits are sorted by radix, ten times as fast as wider ones.
        narrow = buckets.astype(np.uint16) if self.mask <= _MASK16 else buckets
        by_bucket = np.argsort(narrow, kind="stable")
        in_order = buckets[by_bucket]
        positions = (by_bucket + start).astype(np.int32)
        linked = heads[in_order]
        is_linked = in_order[1:] == in_order[:-1]
        np.copyto(linked[1:], positions[:-1], where=is_linked)
        previous = np.empty(len(hashed), np.int32)
        previous[by_bucket] = linked
        # Of equal buckets the last assignment stands, and stably sorted that is the latest.
        heads[in_order] = positions
        return previous


class NgramIndex:
    """A growing sequence of token ids that finds earlier occurrences of its latest tokens."""

    def __init__(self, *, min_length: int, max_length: int, expected_len: int = 0) -> None:
        self.tokens = array("I")
        self._min_length = min_length
        self._max_length = max_length
        orders = [1 << power for power in range(max_length.bit_length())]
        self._chains = [_HashChain(order, expected_len) for order in orders]
        self._searched = [chain for chain in self._chains if chain.order * 2 > min_length]

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens; each is below ``2**32``."""
        if len(token_ids) >= _BULK_LENGTH:
            self._extend_in_bulk(np.asarray(token_ids, dtype=np.uint32))
        else:
            for token_id in token_ids:
                self._append(token_id)
        if len(self.tokens) > _MAX_LOAD * len(self._chains[0].heads):
            for chain in self._chains:
                chain.grow()

    def matches(self, limit_per_order: int) -> list[Match]:
        """
        Return earlier occurrences of the latest tokens, the longest first, of equals the latest.

        For each order at most ``limit_per_order``, the latest ones. Lengths are at most the
        maximum length. The cost does not depend on the length of the sequence.
        """
        position = len(self.tokens) - 1
        if position < 1:
            return []
        found: dict[int, int] = {}
        for order_found in self._occurrences(position, limit_per_order):
            for earlier, known_length in order_found:
                if earlier not in found:
                    found[earlier] = self._match_length(position, earlier, known_length)
        return [
            Match(length, earlier + 1)
            for earlier, length in sorted(
                found.items(), key=lambda item: (item[1], item[0]), reverse=True
            )
            if length >= self._min_length
        ]

    def _occurrences(self, position: int, limit: int) -> list[list[tuple[int, int]]]:
        """Return (end position, order) of earlier occurrences for each order, highest first."""
        by_order: list[list[tuple[int, int]]] = []
        for chain in self._searched:
            hashes = chain.hashes
            previous = chain.previous
            hashed = hashes[position]
            earlier = previous[position]
            steps = limit * _STEPS_PER_CANDIDATE
            entries: list[tuple[int, int]] = []
            while earlier >= 0 and steps and len(entries) < limit:
                if hashes[earlier] == hashed:
                    entries.append((earlier, chain.order))
                earlier = previous[earlier]
                steps -= 1
            if not entries:
                break
            by_order.append(entries)
        by_order.reverse()
        return by_order

    def _match_length(self, position: int, earlier: int, known_length: int) -> int:
        """Return how many tokens up to both positions agree; hashes say at least the known ones."""
        tokens = self.tokens
        if tokens[earlier] != tokens[position]:
            return 0
        length = known_length
        longest = min(self._max_length, earlier + 1)
        while length < longest and tokens[earlier - length] == tokens[position - length]:
            length += 1
        return length

    def _append(self, token_id: int) -> None:
        position = len(self.tokens)
        self.tokens.append(token_id)
        hashed = (token_id + 1) * _MULTIPLIER & _MASK32
        hashed ^= hashed >> 15
        half = 0
        half_hashes = self._chains[0].hashes
        for chain in self._chains:
            if half:
                earlier = half_hashes[position - half] if position >= half else 0
                hashed = (earlier * _FOLD + hashed) * _MULTIPLIER & _MASK32
                hashed ^= hashed >> 15
            chain.append(position, hashed)
            half, half_hashes = chain.order, chain.hashes

    def _extend_in_bulk(self, token_ids: NDArray[np.uint32]) -> None:
        start = len(self.tokens)
        self.tokens.frombytes(token_ids.tobytes())
        hashed = _mixed(token_ids + np.uint32(1))
        below: _HashChain | None = None
        for chain in self._chains:
            if below is not None:
                half = chain.order >> 1
                known = np.frombuffer(below.hashes, np.uint32)[max(start - half, 0) :]
                padding = np.zeros(max(half - start, 0), np.uint32)
                earlier = np.concatenate((padding, known))[: len(hashed)]
                hashed = _mixed(earlier * np.uint32(_FOLD) + hashed)
                del known
            chain.extend(start, hashed)
            below = chain


def _mixed(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    product = values * np.uint32(_MULTIPLIER)
    return np.asarray(product ^ (product >> np.uint32(15)), dtype=np.uint32)
