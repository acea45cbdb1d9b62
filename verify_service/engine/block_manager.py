"""
Ownership of the KV blocks: allocation, sharing of cached prefixes, eviction. It moves no tensors.

Every block is in exactly one state:
    in use    ref_count > 0; held by that many block tables
    cached    ref_count = 0, holds the KV of a known prefix; evicted oldest first
    empty     ref_count = 0, holds nothing of value

Only full blocks of committed tokens are ever cached. A block's key chains over everything before
it, so equal keys mean equal prefixes (and equal salts). Keys may be computed later than blocks
fill, at the latest before anyone could tell: when a prefix is looked for or blocks are given back.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from paceline.errors import EngineFailed


class _Unpublished(NamedTuple):
    """A block table that holds new full blocks; the lists are their sequence's own."""

    block_table: SequenceOf[int]
    token_ids: SequenceOf[int]
    num_stored: int
    salt: str


class BlockManager:
    """The blocks of one KV cache."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._ref_counts = [0] * num_blocks
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        self._key_of_block: dict[int, bytes] = {}
        self._block_of_key: dict[bytes, int] = {}
        self._unpublished: list[_Unpublished] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def num_in_use(self) -> int:
        """Blocks held by block tables."""
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def can_grow(self, block_table: SequenceOf[int], num_tokens: int) -> bool:
        """Return whether ``block_table`` can be grown to hold ``num_tokens``."""
        return self.blocks_for(num_tokens) - len(block_table) <= self.num_free

    def grow(self, block_table: list[int], num_tokens: int) -> None:
        """Append blocks until ``block_table`` holds ``num_tokens``; check ``can_grow`` first."""
        while len(block_table) * self.block_size < num_tokens:
            block_table.append(self._take(block_table[-1] + 1 if block_table else None))

    def shrink(self, block_table: list[int], num_tokens: int) -> None:
        """Give back the blocks beyond those that hold ``num_tokens``."""
        while len(block_table) > self.blocks_for(num_tokens):
            self._release(block_table.pop())

    def free(self, block_table: list[int]) -> None:
        """Give back all blocks; what was published, or was to be, stays cached."""
        self.settle()
        self.shrink(block_table, 0)

    def match_prefix(self, token_ids: SequenceOf[int], salt: str) -> list[int]:
        """
        Return, and take hold of, the cached blocks of the longest known prefix.

        At least one token is left out, since its row has to be computed for its logits.
        """
        block_table: list[int] = []
        if not self.prefix_caching:
            return block_table
        self.settle()
        for key in self._keys(token_ids, salt, (len(token_ids) - 1) // self.block_size, b""):
            block = self._block_of_key.get(key)
            if block is None:
                break
            self._hold(block)
            block_table.append(block)
        return block_table

    def publish(
        self, block_table: SequenceOf[int], token_ids: SequenceOf[int], num_stored: int, salt: str
    ) -> None:
        """
        Make the full blocks of the first ``num_stored`` committed tokens reusable.

        Blocks published before are recognised by their key and cost nothing.
        """
        if not self.prefix_caching:
            return
        num_full = num_stored // self.block_size
        start = num_full
        while start > 0 and block_table[start - 1] not in self._key_of_block:
            start -= 1
        previous = self._key_of_block[block_table[start - 1]] if start else b""
        tokens = token_ids[start * self.block_size : num_full * self.block_size]
        keys = self._keys(tokens, salt, num_full - start, previous)
        for block, key in zip(block_table[start:num_full], keys, strict=True):
            if key not in self._block_of_key:
                self._block_of_key[key] = block
                self._key_of_block[block] = key

    def publish_later(
        self, block_table: SequenceOf[int], token_ids: SequenceOf[int], num_stored: int, salt: str
    ) -> None:
        """Do as ``publish`` when there is time; what is passed may grow, not change, until then."""
        if self.prefix_caching:
            self._unpublished.append(_Unpublished(block_table, token_ids, num_stored, salt))

    def settle(self) -> None:
        """Publish what was put off."""
        unpublished, self._unpublished = self._unpublished, []
        for each in unpublished:
            self.publish(*each)

    def forget_cached(self) -> None:
        """Make every cached block empty."""
        self.settle()
        while self._cached:
            self._empty[self._evict()] = None

    def check_integrity(self, block_tables: SequenceOf[SequenceOf[int]]) -> None:
        """Raise ``EngineFailed`` unless ``block_tables`` account for every block in use."""
        counts = [0] * self.num_blocks
        for block_table in block_tables:
            for block in block_table:
                counts[block] += 1
        if counts != self._ref_counts:
            wrong = [b for b in range(self.num_blocks) if counts[b] != self._ref_counts[b]]
            raise EngineFailed(f"KV blocks {wrong[:8]} are held by other counts than recorded")
        idle = {block for block, count in enumerate(counts) if count == 0}
        if idle != set(self._empty) | set(self._cached) or set(self._empty) & set(self._cached):
            raise EngineFailed("the free lists do not hold exactly the idle KV blocks")
        if any(self._block_of_key[key] != block for block, key in self._key_of_block.items()):
            raise EngineFailed("the prefix index does not match its blocks")

    def _take(self, preferred: int | None) -> int:
        # A run of consecutive blocks lets attention read the cache without copying.
        if preferred is not None and preferred in self._empty:
            del self._empty[preferred]
            block = preferred
        elif self._empty:
            block, _ = self._empty.popitem(last=False)
        elif self._cached:
            block = self._evict()
        else:
            raise EngineFailed("no KV block is free")
        self._ref_counts[block] = 1
        return block

    def _evict(self) -> int:
        block, key = self._cached.popitem(last=False)
        del self._block_of_key[key]
        del self._key_of_block[block]
        return block

    def _hold(self, block: int) -> None:
        self._ref_counts[block] += 1
        self._cached.pop(block, None)

    def _release(self, block: int) -> None:
        self._ref_counts[block] -= 1
        if self._ref_counts[block] > 0:
            return
        key = self._key_of_block.get(block)
        if key is None:
            self._empty[block] = None
        else:
            self._cached[block] = key

    def _keys(
        self, token_ids: SequenceOf[int], salt: str, num_blocks: int, previous: bytes
    ) -> list[bytes]:
        keys: list[bytes] = []
        key = previous or hashlib.blake2b(salt.encode(), digest_size=16).digest()
        for index in range(num_blocks):
            block = token_ids[index * self.block_size : (index + 1) * self.block_size]
            content = b"".join(token_id.to_bytes(4, "little") for token_id in block)
            key = hashlib.blake2b(key + content, digest_size=16).digest()
            keys.append(key)
        return keys
