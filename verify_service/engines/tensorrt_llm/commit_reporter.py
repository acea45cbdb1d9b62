"""
Tells the verifier what each step committed, so that drafters hear of it before the client does.

The executor frees a finished request before its last update, and a paused one in the middle of its
life: closing flushes what is left, and a request that comes back re-opens by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from verify_service.engines.tensorrt_llm.mailbox import Mailbox, RequestDrafts
from verify_service.engines.tensorrt_llm.package_view import (
    ScheduledBatch,
    ScheduledRequest,
    is_dummy,
    tokens_from,
)
from verify_service.engines.tensorrt_llm.wire_frames import Closed, Committed

LOCK_SECONDS = 0.002
"""Longest wait for the thread that merges a tree meanwhile."""


class CommitReporter:
    """Reports committed tokens; no exception leaves it, for the executor would die of one."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox

    def update(self, batch: ScheduledBatch) -> None:
        """Report what a step added to the requests of a batch."""
        try:
            for request in chain(batch.context_requests, batch.generation_requests):
                if not is_dummy(request):
                    self._report(request)
        except Exception:
            self.mailbox.counts["error"] += 1

    def free(self, request: ScheduledRequest) -> None:
        """Report the rest of a request and that it was closed."""
        try:
            if request.py_client_id is None or is_dummy(request):
                return
            self._report(request)
            drafts = self.mailbox.request(request.py_client_id)
            with self._held(drafts) as is_held:
                if is_held:
                    drafts.clear()
                drafts.is_closed = True
            self.mailbox.send(Closed(request.py_client_id))
        except Exception:
            self.mailbox.counts["error"] += 1

    def _report(self, request: ScheduledRequest) -> None:
        if request.py_client_id is None:
            return
        length = request.get_num_tokens(0)
        drafts = self.mailbox.request(request.py_client_id)
        with self._held(drafts) as is_held:
            if not is_held:
                return  # the output stream tells what is missed here
            known = drafts.committed_len or request.py_orig_prompt_len
            if length <= known:
                return
            token_ids = tokens_from(request, known, length)
            num_accepted = _num_accepted(request, drafts)
            drafts.commit(known, token_ids)
            drafts.num_placed = 0
            drafts.is_closed = False
        self.mailbox.send(Committed(request.py_client_id, known, num_accepted, tuple(token_ids)))

    @contextmanager
    def _held(self, drafts: RequestDrafts) -> Iterator[bool]:
        """Hold a request's lock unless it takes too long; the executor's step waits meanwhile."""
        is_held = drafts.lock.acquire(timeout=LOCK_SECONDS)
        if not is_held:
            self.mailbox.counts["busy"] += 1
        try:
            yield is_held
        finally:
            if is_held:
                drafts.lock.release()


def _num_accepted(request: ScheduledRequest, drafts: RequestDrafts) -> int:
    # The target can draw the token that pads chains; what was not drafted was not accepted.
    return min(int(request.py_num_accepted_draft_tokens or 0), drafts.num_placed)
