"""
Fills in ``py_draft_tokens`` before each forward pass. The executor dies of any exception here, so
none leaves; a chain is never None, never longer than allowed, and always a list of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from verify_service.engines.tensorrt_llm.mailbox import Mailbox, RequestDrafts
from verify_service.engines.tensorrt_llm.package_view import (
    ScheduledBatch,
    ScheduledRequest,
    is_dummy,
    tokens_from,
)
from verify_service.engines.tensorrt_llm.wire_frames import Placed

LOCK_SECONDS = 0.0005
WORK_SECONDS = 0.002
"""Most time that choosing chains may add to a step; requests behind it go without."""


class ChainDrafter:
    """Chooses one chain per generation request."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        vocab_size: int,
        wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mailbox = mailbox
        self._vocab_size = vocab_size
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._turn = 0

    def place(self, batch: ScheduledBatch) -> None:
        """Set the chain of every request that decodes."""
        try:
            self._place(batch)
        except Exception:
            self.mailbox.counts["error"] += 1

    def _place(self, batch: ScheduledBatch) -> None:
        requests = [request for request in batch.generation_requests if not is_dummy(request)]
        for request in requests:
            # Whatever fails below: an empty chain is legal, the placeholder of zeros would be one.
            request.py_draft_tokens = []
        self._turn += 1
        first = self._turn % max(len(requests), 1)
        until = self._clock() + self._wait_seconds
        for request in (*requests[first:], *requests[:first]):
            if self._clock() > until + WORK_SECONDS:
                self.mailbox.counts["deadline"] += 1
                continue
            try:
                request.py_draft_tokens = self._chain(request, until)
            except Exception:
                self.mailbox.counts["error"] += 1

    def _chain(self, request: ScheduledRequest, until: float) -> list[int]:
        if request.py_client_id is None or _is_disabled(request):
            return []
        length = request.get_num_tokens(0)
        room = request.py_orig_prompt_len + request.py_max_new_tokens - 1 - length
        drafts = self.mailbox.request(request.py_client_id)
        if not drafts.lock.acquire(timeout=LOCK_SECONDS):
            self.mailbox.counts["busy"] += 1
            return []
        try:
            _catch_up(request, drafts, length)
            limit = min(self.mailbox.max_draft_tokens, drafts.max_draft_tokens, room)
            chain = self._usable(drafts.path(limit), limit)
        finally:
            drafts.lock.release()
        if not chain and limit > 0 and drafts.had_chain:
            chain = self._late_chain(drafts, limit, until)
        drafts.had_chain = bool(chain)
        drafts.num_placed = len(chain)
        if chain:
            self.mailbox.send(Placed(request.py_client_id, length, len(chain)))
        return chain

    def _late_chain(self, drafts: RequestDrafts, limit: int, until: float) -> list[int]:
        """Wait for a drafter that kept up so far; all requests of a step share one deadline."""
        while (left := until - self._clock()) > 0 and drafts.is_empty:
            self.mailbox.wait_for_fact(left)
        if not drafts.lock.acquire(timeout=LOCK_SECONDS):
            return []
        try:
            return self._usable(drafts.path(limit), limit)
        finally:
            drafts.lock.release()

    def _usable(self, chain: list[int], limit: int) -> list[int]:
        if limit <= 0:
            self.mailbox.counts["at_limit"] += 1
            return []
        if not chain:
            self.mailbox.counts["empty"] += 1
        if not all(0 <= token_id < self._vocab_size for token_id in chain):
            self.mailbox.counts["out_of_vocabulary"] += 1
            return []
        return chain[:limit]


def _is_disabled(request: object) -> bool:
    # Such a request has reserved no KV for drafts.
    return getattr(request, "py_disable_speculative_decoding", False) is True


def _catch_up(request: ScheduledRequest, drafts: RequestDrafts, length: int) -> None:
    """Commit what was generated without our seeing it: the first tokens, and after a pause."""
    if drafts.committed_len >= length:
        return
    known = drafts.committed_len or request.py_orig_prompt_len
    drafts.commit(known, tokens_from(request, known, length))
