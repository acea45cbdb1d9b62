"""
What is handed to the package: a drafter and a resource manager that run in its worker process.

They are pickled on their way there, so they hold plain data only; sockets and threads open on first
use. They have two lives: in the middle of its start, to learn how much memory is left, the package
runs an executor, shuts it and its managers down and starts another with the same objects. So the
link is asked for at every call, and opened again once it was closed.

Imported lazily: this module needs ``tensorrt_llm``. It has not run against the real package.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

from tensorrt_llm._torch.pyexecutor.resource_manager import BaseResourceManager
from tensorrt_llm._torch.speculative.drafter import Drafter

from verify_service.engines.tensorrt_llm.chain_drafter import ChainDrafter
from verify_service.engines.tensorrt_llm.commit_reporter import CommitReporter
from verify_service.engines.tensorrt_llm.mailbox_link import close_link, link_at
from verify_service.engines.tensorrt_llm.package_view import ScheduledBatch, ScheduledRequest


@dataclass(frozen=True, slots=True)
class MailboxPlace:
    """Where the worker finds the verifier, and the limits of both."""

    address: str
    max_draft_tokens: int
    vocab_size: int
    max_requests: int
    wait_seconds: float = 0.0


class MailboxDrafter(Drafter):  # type: ignore[misc]  # the package has no types here
    """Takes each step's chains from the mailbox."""

    # The sampler rewinds by the padded length, so padding needs KV of its own (1.3 and later).
    _needs_padding_kv_extension = True

    def __init__(self, place: MailboxPlace) -> None:
        length = place.max_draft_tokens
        offered = {"max_draft_len": length, "max_total_draft_tokens": length}
        accepted = inspect.signature(Drafter.__init__).parameters
        super().__init__(**{name: value for name, value in offered.items() if name in accepted})
        if "max_draft_len" not in accepted:
            self.max_draft_len = length  # 1.2rc: subclasses set it
        self._place = place
        self._chains: ChainDrafter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_chains": None}

    def prepare_draft_tokens(
        self, scheduled_requests: ScheduledBatch, resource_manager: object = None
    ) -> None:
        """Set ``py_draft_tokens`` of every request that decodes; never raises."""
        del resource_manager
        try:
            self._placing().place(scheduled_requests)
        except Exception:  # the executor would die of it
            with contextlib.suppress(Exception):
                for request in scheduled_requests.generation_requests:
                    request.py_draft_tokens = []

    def _placing(self) -> ChainDrafter:
        place = self._place
        mailbox = link_at(place.address, place.max_draft_tokens).mailbox
        if self._chains is None or self._chains.mailbox is not mailbox:
            self._chains = ChainDrafter(
                mailbox, vocab_size=place.vocab_size, wait_seconds=place.wait_seconds
            )
        return self._chains


class MailboxResourceManager(BaseResourceManager):  # type: ignore[misc]  # no types here either
    """
    Reports commits; holds no GPU resource.

    It has no ``spec_tree_manager``: the sampler would take chains for trees.
    """

    def __init__(self, place: MailboxPlace) -> None:
        self._place = place
        self._reporter: CommitReporter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reporter": None}

    def get_max_resource_count(self) -> int:
        """Return how many requests can be held."""
        return self._place.max_requests

    def get_needed_resource_to_completion(self, request: ScheduledRequest) -> int:
        """Return 0: requests take nothing."""
        del request
        return 0

    def add_dummy_requests(self, request_ids: list[int]) -> None:
        """Do nothing."""

    def prepare_resources(self, scheduled_batch: ScheduledBatch) -> None:
        """Do nothing."""

    def update_resources(self, scheduled_batch: ScheduledBatch, *_: object) -> None:
        """Report what the step committed; never raises."""
        with contextlib.suppress(Exception):
            self._reports().update(scheduled_batch)

    def free_resources(self, request: ScheduledRequest) -> None:
        """Report the end, or the pause, of a request; never raises."""
        with contextlib.suppress(Exception):
            self._reports().free(request)

    def shutdown(self) -> None:
        """Close the link to the verifier; the next call opens it again."""
        close_link(self._place.address)

    def _reports(self) -> CommitReporter:
        place = self._place
        mailbox = link_at(place.address, place.max_draft_tokens).mailbox
        if self._reporter is None or self._reporter.mailbox is not mailbox:
            self._reporter = CommitReporter(mailbox)
        return self._reporter
