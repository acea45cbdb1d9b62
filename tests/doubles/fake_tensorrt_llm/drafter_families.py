"""The drafter and resource manager bases of each family, padding included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from tests.doubles.fake_tensorrt_llm.requests import Batch, LlmRequest


def _pad(batch: Batch, length: int) -> None:
    for request in batch.generation_requests:
        # In place, as the package does: a shared or missing list shows here.
        request.py_draft_tokens.extend([0] * (length - len(request.py_draft_tokens)))


class CandidateDrafter(ABC):
    """1.2 release candidates: subclasses set ``max_draft_len``."""

    max_draft_len: int

    def __init__(self, max_concurrency: int | None = None) -> None:
        self.max_concurrency = max_concurrency

    @abstractmethod
    def prepare_draft_tokens(
        self, scheduled_requests: Batch, resource_manager: object = None
    ) -> None:
        """Set every generation request's drafts."""

    @final
    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Batch) -> None:
        """Pad all drafts to the static length."""
        _pad(scheduled_requests, self.max_draft_len)


class StableDrafter(ABC):
    """1.2.0 and 1.2.1."""

    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_draft_len = max_draft_len
        self.max_concurrency = max_concurrency
        self._static_max_total_draft_tokens = max_total_draft_tokens or 0
        self._draft_len_schedule = draft_len_schedule

    @abstractmethod
    def prepare_draft_tokens(
        self, scheduled_requests: Batch, resource_manager: object = None
    ) -> None:
        """Set every generation request's drafts."""

    @final
    def should_use_spec_decode(
        self,
        requests: list[LlmRequest],
        max_batch_size: int,
        max_num_tokens: int,
        max_total_draft_tokens: int,
    ) -> bool:
        """Return whether this step speculates."""
        del max_batch_size, max_num_tokens, max_total_draft_tokens
        return self.max_concurrency is None or len(requests) <= self.max_concurrency

    @final
    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Batch) -> None:
        """Pad all drafts to the static length."""
        _pad(scheduled_requests, self._static_max_total_draft_tokens)


class LaterDrafter(ABC):
    """1.3 and later: padding also extends KV, if the drafter says that it must."""

    _needs_padding_kv_extension = False

    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_draft_len = max_draft_len
        self.max_concurrency = max_concurrency
        self._static_max_total_draft_tokens = max_total_draft_tokens or 0
        self._draft_len_schedule = draft_len_schedule

    @abstractmethod
    def prepare_draft_tokens(
        self, scheduled_requests: Batch, resource_manager: object = None
    ) -> None:
        """Set every generation request's drafts."""

    @final
    def should_use_spec_decode(
        self,
        requests: list[LlmRequest],
        max_batch_size: int,
        max_num_tokens: int,
        max_total_draft_tokens: int,
    ) -> bool:
        """Return whether this step speculates."""
        del requests, max_batch_size, max_num_tokens, max_total_draft_tokens
        return True

    @final
    def pad_draft_tokens_for_cuda_graph(
        self, scheduled_requests: Batch, resource_manager: object = None
    ) -> None:
        """Pad all drafts to the static length."""
        del resource_manager
        if not self._needs_padding_kv_extension:
            raise RuntimeError("a TorchSampler drafter must ask for KV behind its padding")
        for request in scheduled_requests.generation_requests:
            request.py_draft_tokens_effective_len = len(request.py_draft_tokens)
        _pad(scheduled_requests, self._static_max_total_draft_tokens)


Drafter = CandidateDrafter | StableDrafter | LaterDrafter


class BaseResourceManager:
    """What the executor calls around each step."""

    def get_max_resource_count(self) -> int:
        """Return how many requests fit."""
        raise NotImplementedError

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        """Return what a request needs."""
        raise NotImplementedError

    def add_dummy_requests(self, request_ids: list[int]) -> None:
        """Make room for dummies."""

    def prepare_resources(self, scheduled_batch: Batch) -> None:
        """Run before the forward pass."""

    def update_resources(self, scheduled_batch: Batch) -> None:
        """Run after the step."""

    def free_resources(self, request: LlmRequest) -> None:
        """Run when a request ends or pauses."""

    def shutdown(self) -> None:
        """Run at the end."""
