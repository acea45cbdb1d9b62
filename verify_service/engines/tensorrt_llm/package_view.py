"""The package's objects as the engine uses them; everything else about them is not relied on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol


class Completion(Protocol):
    """One output of a request."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens so far; deltas follow from its length."""
        ...

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: stop, length, timeout, cancelled."""
        ...

    @property
    def stop_reason(self) -> int | str | None:
        """What it stopped at, where that is a word or token of the request's."""
        ...


class RequestHandle(Protocol):
    """A running request (``RequestOutput``); iterating yields itself once per engine step."""

    @property
    def request_id(self) -> int:
        """The id that drafters see as ``py_client_id``."""
        ...

    @property
    def outputs(self) -> Sequence[Completion]:
        """The outputs; we ask for one."""
        ...

    def abort(self) -> None:
        """Stop the request."""
        ...

    def __aiter__(self) -> AsyncIterator[RequestHandle]: ...


class Llm(Protocol):
    """The package's ``LLM``."""

    def generate_async(
        self, inputs: Mapping[str, object], sampling_params: object, *, streaming: bool = False
    ) -> RequestHandle:
        """Submit a request; returns at once."""
        ...

    def shutdown(self) -> None:
        """End the workers."""
        ...


class ScheduledRequest(Protocol):
    """An ``LlmRequest`` in the worker."""

    py_client_id: int | None
    py_orig_prompt_len: int
    """The prompt's length; a pause does not change it."""
    py_max_new_tokens: int
    py_draft_tokens: list[int]
    py_num_accepted_draft_tokens: int

    def get_num_tokens(self, beam: int) -> int:
        """Return prompt and generated tokens, the newest included."""
        ...

    def get_tokens(self, beam: int) -> Sequence[int]:
        """Return a full copy of them."""
        ...


class ScheduledBatch(Protocol):
    """``ScheduledRequests``; only these members mean the same in every family."""

    @property
    def context_requests(self) -> Iterable[ScheduledRequest]:
        """Requests in prefill."""
        ...

    @property
    def generation_requests(self) -> Iterable[ScheduledRequest]:
        """Requests that decode."""
        ...


_DUMMY_FLAGS = ("is_dummy", "is_dummy_request", "is_attention_dp_dummy", "is_cuda_graph_dummy")


def is_dummy(request: object) -> bool:
    """Return whether a request only pads the batch."""
    return any(getattr(request, flag, False) is True for flag in _DUMMY_FLAGS)


def tokens_from(request: ScheduledRequest, start: int, stop: int) -> list[int]:
    """Return the tokens ``[start, stop)``; copies all of them only where there is no other way."""
    get_token = getattr(request, "get_token", None)
    if get_token is None:
        return [int(token) for token in request.get_tokens(0)[start:stop]]
    return [int(get_token(0, index)) for index in range(start, stop)]
