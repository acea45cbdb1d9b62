"""
What drafters say about running requests, held in the worker process.

The I/O thread posts facts; the executor's event-loop thread commits tokens and takes chains. Each
request has its own lock, so that merging one tree never holds up another request's step.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from verify_service.engine.draft_trie import DraftTrie, MergeOutcome
from verify_service.engines.tensorrt_llm.best_path import best_path
from verify_service.engines.tensorrt_llm.wire_frames import Fact, Forget, Frame, Limit

MAX_REQUESTS = 4096
MAX_TAIL = 256
"""Committed tokens that are remembered per request: facts older than this are of no use."""
MAX_AHEAD = 8
MAX_TRIE_NODES = 256

CAUSES = (
    "empty", "at_limit", "stale", "busy", "deadline", "out_of_vocabulary", "error", "invalid_fact",
    "unsent",
)  # fmt: skip
"""Why a chain stayed empty or a fact was dropped; the index travels."""


class RequestDrafts:
    """The trie of one request and the committed tokens that it continues."""

    def __init__(self, max_draft_tokens: int) -> None:
        self.lock = threading.Lock()
        self.max_draft_tokens = max_draft_tokens
        self.committed_len = 0
        """Tokens that the executor committed, prompt included; 0: not seen by it yet."""
        self.num_placed = 0
        """Length of the chain under verification, padding excluded."""
        self.had_chain = False
        self.is_closed = False
        self._tail: list[int] = []
        self._trie = DraftTrie(MAX_TRIE_NODES)
        self._ahead: list[Fact] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing is drafted."""
        return self._trie.num_nodes == 0

    def restrict(self, max_draft_tokens: int) -> None:
        """Forget what was drafted; draft at most ``max_draft_tokens`` from now on."""
        self.max_draft_tokens = max_draft_tokens
        self.clear()

    def clear(self) -> None:
        """Forget what was drafted."""
        self._trie.clear()
        self._ahead.clear()

    def merge(self, fact: Fact) -> MergeOutcome:
        """Add a fact; one about tokens that are not committed yet waits for them."""
        start = self.committed_len - len(self._tail)
        if self.committed_len == 0 or fact.base_len > self.committed_len:
            self._ahead.append(fact)
            del self._ahead[:-MAX_AHEAD]
            return MergeOutcome.AHEAD
        if fact.base_len < start:
            return MergeOutcome.STALE
        return self._trie.merge(fact.base_len - start, fact.tree, self._tail)

    def commit(self, base_len: int, token_ids: Sequence[int]) -> None:
        """Re-root along committed tokens; those known already are skipped."""
        if base_len > self.committed_len:
            # Where the tokens in between are unknown, nothing drafted before can be placed.
            self._trie.clear()
            self._tail.clear()
            new = list(token_ids)
        else:
            new = list(token_ids[self.committed_len - base_len :])
            self._trie.advance(new)
        self._tail = [*self._tail, *new][-MAX_TAIL:]
        self.committed_len = max(self.committed_len, base_len + len(token_ids))
        ahead, self._ahead = self._ahead, []
        for fact in ahead:
            self.merge(fact)

    def path(self, max_len: int) -> list[int]:
        """Return the best chain, at most ``max_len`` tokens."""
        return best_path(self._trie.root, max_len)


class Mailbox:
    """All requests of one worker process."""

    def __init__(self, max_draft_tokens: int, send: Callable[[Frame], None]) -> None:
        self.max_draft_tokens = max_draft_tokens
        self.send = send
        """Hands a frame to the I/O thread; never blocks."""
        self.counts: Counter[str] = Counter()
        self._requests: OrderedDict[int, RequestDrafts] = OrderedDict()
        self._lock = threading.Lock()
        self._arrived = threading.Event()

    def request(self, client_id: int) -> RequestDrafts:
        """Return a request's drafts; one never seen is created, and the oldest evicted."""
        with self._lock:
            found = self._requests.get(client_id)
            if found is None:
                found = self._requests[client_id] = RequestDrafts(self.max_draft_tokens)
                self._evict()
            return found

    def receive(self, frame: Frame) -> None:
        """Take a frame from the verifier; called on the I/O thread."""
        match frame:
            case Fact(client_id):
                request = self.request(client_id)
                with request.lock:
                    outcome = request.merge(frame)
                if outcome is MergeOutcome.STALE:
                    self.counts["stale"] += 1
                self._arrived.set()
            case Limit(client_id, max_draft_tokens):
                request = self.request(client_id)
                with request.lock:
                    request.restrict(max_draft_tokens)
            case Forget(client_id):
                with self._lock:
                    self._requests.pop(client_id, None)
            case _:
                self.counts["error"] += 1

    def _evict(self) -> None:
        while len(self._requests) > MAX_REQUESTS:
            closed = (key for key, drafts in self._requests.items() if drafts.is_closed)
            del self._requests[next(closed, next(iter(self._requests)))]

    def wait_for_fact(self, seconds: float) -> bool:
        """Return once a fact arrives, or after ``seconds``; whether one did."""
        arrived = self._arrived.wait(seconds)
        self._arrived.clear()
        return arrived
