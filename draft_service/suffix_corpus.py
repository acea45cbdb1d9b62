"""
Earlier outputs of tenants, each tenant's apart from all others, bounded in memory.

A tenant's corpus is reached with the tenant's exact name only. Sessions without a tenant have
none: nobody has said that their texts belong together.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draft_service.suffix_index import SuffixIndex
from draft_service.suffix_states import Memory

INGESTED_AT_ONCE: Final = 8_192
"""Tokens that one call takes in, 5 to 10 ms: other sessions wait for it, the rest for the next."""
_MIN_TEXT_LENGTH: Final = 8
"""Shorter outputs tell nothing."""


class Corpus:
    """
    The latest outputs of one tenant, in two generations.

    New outputs go to the young one. When it holds half of what the corpus may hold it becomes the
    old one, and the former old one is forgotten.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_generation_tokens = max_tokens // 2
        self._young = SuffixIndex()
        self._old = SuffixIndex()
        self._waiting: deque[NDArray[np.int32]] = deque()
        self._num_waiting = 0
        self.num_turns = 0
        """How often the generations have changed; contexts found before are void."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def generations(self) -> tuple[Memory, Memory]:
        """The young and the old one."""
        return self._young.memory, self._old.memory

    @property
    def num_bytes(self) -> int:
        """The memory that the corpus takes."""
        waiting = sum(token_ids.nbytes for token_ids in self._waiting)
        return self._young.num_bytes + self._old.num_bytes + waiting

    def add(self, token_ids: NDArray[np.int32]) -> None:
        """Take note of an output; of one longer than a generation, of its end."""
        if len(token_ids) < _MIN_TEXT_LENGTH or not self._max_generation_tokens:
            return
        token_ids = token_ids[-self._max_generation_tokens :]
        self._waiting.append(token_ids)
        self._num_waiting += len(token_ids)
        while self._num_waiting > self._max_generation_tokens:
            self._num_waiting -= len(self._waiting.popleft())

    def ingest(self) -> None:
        """Index what waits, as much as may be done at once."""
        room = INGESTED_AT_ONCE
        while self._waiting and room > 0:
            token_ids = self._waiting.popleft()
            self._num_waiting -= len(token_ids)
            self._index(token_ids[:room])
            if len(token_ids) > room:
                self._waiting.appendleft(token_ids[room:])
                self._num_waiting += len(token_ids) - room
            room -= len(token_ids)

    def forget(self) -> None:
        """Forget everything, now and in future: the corpus has been evicted."""
        self._max_generation_tokens = self._num_waiting = 0
        self._waiting.clear()
        self._young, self._old = SuffixIndex(), SuffixIndex()
        self.num_turns += 1

    def _index(self, token_ids: NDArray[np.int32]) -> None:
        if len(self._young) + len(token_ids) + 1 > self._max_generation_tokens and len(self._young):
            self._old, self._young = self._young, SuffixIndex()
            self.num_turns += 1
        self._young.extend(token_ids)
        self._young.separate()


class TenantCorpora:
    """The corpora of the tenants that were active last."""

    def __init__(self, max_tenants: int, max_tokens: int) -> None:
        self._max_tenants = max_tenants
        self._max_tokens = max_tokens
        self._corpora: OrderedDict[str, Corpus] = OrderedDict()

    def __len__(self) -> int:
        return len(self._corpora)

    def of(self, tenant: str) -> Corpus | None:
        """Return the corpus of a tenant; there is none without a name, or if none are kept."""
        if not tenant or not self._max_tokens:
            return None
        corpus = self._corpora.get(tenant)
        if corpus is None:
            while len(self._corpora) >= self._max_tenants:
                self._corpora.popitem(last=False)[1].forget()
            corpus = self._corpora[tenant] = Corpus(self._max_tokens)
        self._corpora.move_to_end(tenant)
        return corpus
