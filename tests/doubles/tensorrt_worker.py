"""The worker half of the tensorrt-llm engine on the fake executor; facts are posted by hand."""

from __future__ import annotations

import itertools
import os
import pickle
import tempfile
from importlib import import_module
from typing import Any

import pytest

from paceline.tree import TokenTree
from tests.doubles.fake_tensorrt_llm.executor import FakeExecutor, SamplingChoice
from tests.doubles.fake_tensorrt_llm.modules import WORKER_PLUGIN, install
from tests.doubles.fake_tensorrt_llm.requests import LlmRequest
from verify_service.engines.tensorrt_llm.mailbox import Mailbox
from verify_service.engines.tensorrt_llm.mailbox_link import close_link, link_at
from verify_service.engines.tensorrt_llm.wire_frames import Committed, Fact, Frame
from verify_service.targets.table import LogitsFunction

_numbers = itertools.count()


class TensorRtWorker:
    """An executor whose drafter and resource manager came through pickling."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        logits_of: LogitsFunction,
        *,
        family: str = "1.2",
        num_drafts: int = 4,
        vocab_size: int = 32,
        **options: Any,
    ) -> None:
        install(patch, family, logits_of)
        plugin = import_module(WORKER_PLUGIN)
        # Nobody listens there: the worker must not mind.
        folder = tempfile.gettempdir()
        self.address = f"{folder}/paceline-none-{os.getpid()}-{next(_numbers)}"
        place = plugin.MailboxPlace(self.address, num_drafts, vocab_size, 8)
        drafter, resources = plugin.MailboxDrafter(place), plugin.MailboxResourceManager(place)
        self.executor = FakeExecutor(
            logits_of,
            pickle.loads(pickle.dumps(drafter)),  # noqa: S301 a round trip of our own
            pickle.loads(pickle.dumps(resources)),  # noqa: S301 likewise
            import_module("tensorrt_llm._torch.pyexecutor.scheduler").ScheduledRequests,
            num_drafts=num_drafts,
            **options,
        )
        self.sent: list[Frame] = []
        self._num_drafts = num_drafts
        self.mailbox: Mailbox
        self.reopen()

    def reopen(self) -> None:
        """Listen to the link that is open now."""
        self.mailbox = link_at(self.address, self._num_drafts).mailbox
        self.mailbox.send = self.sent.append

    def submit(
        self,
        client_id: int,
        prompt: list[int],
        max_tokens: int,
        stop_token_ids: list[int] | None = None,
    ) -> LlmRequest:
        """Queue a greedy request."""
        choice = SamplingChoice(1, 0.0, 1.0, stop_token_ids, -1, max_tokens)
        request = LlmRequest(client_id, prompt, max_tokens, choice)
        self.executor.submit(request)
        return request

    def post(self, client_id: int, base_len: int, tokens: list[int]) -> None:
        """Let a chain arrive from a drafter."""
        self.mailbox.receive(Fact(client_id, base_len, TokenTree.chain(tokens)))

    def committed(self, client_id: int, prompt_len: int) -> list[int]:
        """Return what the reports say was committed after the prompt."""
        tokens: list[int] = []
        for frame in self.sent:
            if isinstance(frame, Committed) and frame.client_id == client_id:
                tokens[frame.base_len - prompt_len :] = frame.token_ids
        return tokens

    def close(self) -> None:
        """Stop the I/O thread."""
        close_link(self.address)
