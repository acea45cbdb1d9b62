"""``LlmRequest`` and ``ScheduledRequests``, with the attributes that the contract records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class LlmRequest:
    """One request inside the executor."""

    def __init__(
        self, client_id: int | None, prompt: list[int], max_new_tokens: int, sampling: object
    ) -> None:
        self.py_client_id = client_id
        self.py_request_id = 10_000 + (client_id or 0)
        self.py_prompt_len = len(prompt)
        self.py_orig_prompt_len = len(prompt)
        self.py_max_new_tokens = max_new_tokens
        self.py_decoding_iter = 0
        self.py_draft_tokens: list[int] = []
        self.py_last_draft_tokens: list[int] | None = None
        self.py_num_accepted_draft_tokens = 0
        self.py_draft_tokens_effective_len = 0
        self.py_batch_idx: int | None = None
        self.is_attention_dp_dummy = False
        self.is_cuda_graph_dummy = False
        self.sampling = sampling
        self.finish_reason: str | None = None
        self.stop_reason: int | None = None
        self.num_sent = len(prompt)
        self._tokens = list(prompt)

    def get_num_tokens(self, beam: int) -> int:
        """Return prompt and generated tokens."""
        del beam
        return len(self._tokens)

    def get_tokens(self, beam: int) -> list[int]:
        """Return a copy of all tokens."""
        del beam
        return list(self._tokens)

    def get_token(self, beam: int, pos: int) -> int:
        """Return one token."""
        del beam
        return self._tokens[pos]

    def add_new_token(self, token_id: int, beam: int) -> None:
        """Append a token."""
        del beam
        self._tokens.append(token_id)

    def pause(self) -> None:
        """Go back to prefill, with what was generated as part of the prompt."""
        self.py_prompt_len = len(self._tokens)
        self.py_draft_tokens = []


@dataclass
class ScheduledRequests:
    """A batch, in the shape of 1.2."""

    context_requests: list[LlmRequest] = field(default_factory=list)
    generation_requests: list[LlmRequest] = field(default_factory=list)
    paused_requests: list[LlmRequest] = field(default_factory=list)

    @property
    def batch_size(self) -> int:
        """Requests that run."""
        return len(self.context_requests) + len(self.generation_requests)

    def all_requests(self) -> list[LlmRequest]:
        """Return all that run."""
        return [*self.context_requests, *self.generation_requests]


@dataclass
class SplitScheduledRequests:
    """A batch, in the shape of ``main``: context requests are a view of two lists."""

    context_requests_last_chunk: list[LlmRequest] = field(default_factory=list)
    generation_requests: list[LlmRequest] = field(default_factory=list)
    paused_requests: list[LlmRequest] = field(default_factory=list)
    context_requests_chunking: list[LlmRequest] = field(default_factory=list)

    @property
    def context_requests(self) -> list[LlmRequest]:
        """Requests in prefill; read-only."""
        return [*self.context_requests_chunking, *self.context_requests_last_chunk]

    def all_requests(self) -> list[LlmRequest]:
        """Return all that run."""
        return [*self.context_requests, *self.generation_requests]


Batch = ScheduledRequests | SplitScheduledRequests
MakeBatch = Callable[[list[LlmRequest], list[LlmRequest], list[LlmRequest]], Batch]
