"""``LLM``, its configuration classes and ``RequestOutput``; the executor runs in a thread."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.doubles.fake_tensorrt_llm.executor import (
    FakeExecutor,
    SamplingChoice,
)
from tests.doubles.fake_tensorrt_llm.requests import LlmRequest, MakeBatch
from verify_service.targets.table import LogitsFunction

BLOCK_TOKENS = 32


@dataclass
class World:
    """What the fake serves, and what a test may want to look at or break."""

    logits_of: LogitsFunction
    make_batch: MakeBatch
    max_kv_tokens: int = 100_000
    step_seconds: float = 0.001
    arguments: dict[str, Any] = field(default_factory=dict)
    executors: list[FakeExecutor] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)
    is_hung: bool = False


class TorchLlmArgs:
    """The arguments that ``LLM`` takes; it forbids any other."""

    model: str
    tokenizer: object
    skip_tokenizer_init: bool
    tensor_parallel_size: int
    dtype: str
    speculative_config: object
    kv_cache_config: object
    cuda_graph_config: object
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_beam_width: int
    disable_overlap_scheduler: bool
    enable_chunked_prefill: bool
    attn_backend: str
    stream_interval: int
    backend: str


@dataclass
class SamplingParams:
    """The recorded fields that the engine sets."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    detokenize: bool = True

    @property
    def _greedy_decoding(self) -> bool:
        return not self.use_beam_search and self.top_k in (None, 1) and self.top_p in (None, 0.0)

    def _get_sampling_config(self) -> None:
        """Check what the executor checks."""
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise RuntimeError("Assertion failed: topP.value() > 0.f")


@dataclass
class KvCacheConfig:
    """KV cache settings."""

    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float | None = 0.9
    max_tokens: int | None = None


@dataclass
class CudaGraphConfig:
    """Graph settings."""

    batch_sizes: list[int] | None = None
    enable_padding: bool = False


class UserProvidedDecodingConfig:
    """A drafter of the user's."""

    max_draft_len: int
    drafter: object
    resource_manager: object

    def __init__(
        self, *, max_draft_len: int, drafter: object, resource_manager: object = None
    ) -> None:
        self.max_draft_len = max_draft_len
        self.max_total_draft_tokens = max_draft_len
        self.drafter = drafter
        self.resource_manager = resource_manager


@dataclass
class CompletionOutput:
    """One output."""

    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestError(RuntimeError):
    """The engine died under a request."""


class RequestOutput:
    """A running request."""

    def __init__(self, request_id: int, llm: LLM) -> None:
        self.request_id = request_id
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.cached_tokens = 0
        self._llm = llm
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[list[int], str | None, int | None] | None] = (
            asyncio.Queue()
        )

    def abort(self) -> None:
        """Stop the request."""
        self._llm.cancel(self.request_id)

    def put(self, item: tuple[list[int], str | None, int | None] | None) -> None:
        """Hand over one step's tokens; called on the executor's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        item = await self._queue.get()
        if item is None:
            raise RequestError("the executor died")
        tokens, reason, stop_reason = item
        output = self.outputs[0]
        output.token_ids.extend(tokens)
        output.finish_reason, output.stop_reason = reason, stop_reason
        self.finished = reason is not None
        return self


class LLM:
    """The engine; ``world`` is set by ``modules.install``."""

    world: World

    def __init__(self, model: str, **kwargs: Any) -> None:
        unknown = set(kwargs) - set(TorchLlmArgs.__annotations__)
        if unknown:
            raise ValueError(f"Extra inputs are not permitted: {sorted(unknown)}")
        self.world.arguments = {"model": model, **kwargs}
        config: UserProvidedDecodingConfig = kwargs["speculative_config"]
        # Each travels to the worker on its own, so they share nothing there.
        self._executor = FakeExecutor(
            self.world.logits_of,
            pickle.loads(pickle.dumps(config.drafter)),  # noqa: S301 ours, a round trip
            pickle.loads(pickle.dumps(config.resource_manager)),  # noqa: S301 likewise
            self.world.make_batch,
            num_drafts=config.max_total_draft_tokens,
            max_batch_size=kwargs["max_batch_size"],
            max_kv_tokens=self.world.max_kv_tokens,
        )
        self._executor.rehearse()
        self._executor.on_step = self._respond
        self.world.executors.append(self._executor)
        self._ids = itertools.count(2048, 7)
        self._cached: set[tuple[str | None, tuple[int, ...]]] = set()
        self._reuses = kwargs["kv_cache_config"].enable_block_reuse
        self._handles: dict[int, RequestOutput] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fake-executor", daemon=True)
        self._thread.start()

    def generate_async(
        self,
        inputs: dict[str, Any],
        sampling_params: SamplingParams | None = None,
        lora_request: object = None,
        prompt_adapter_request: object = None,
        streaming: bool = False,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Submit a request."""
        del lora_request, prompt_adapter_request
        params = sampling_params or SamplingParams()
        self.world.submitted.append({"params": params, "salt": cache_salt, **inputs})
        if not streaming or params.end_id is None:
            raise ValueError("streaming and end_id are needed here")
        params._get_sampling_config()
        handle = RequestOutput(next(self._ids), self)
        handle.cached_tokens = self._reuse(list(inputs["prompt_token_ids"]), cache_salt)
        choice = SamplingChoice(
            params.top_k, params.top_p, params.temperature, params.stop_token_ids,
            params.end_id, params.max_tokens,
        )  # fmt: skip
        request = LlmRequest(
            handle.request_id, list(inputs["prompt_token_ids"]), params.max_tokens, choice
        )
        with self._lock:
            self._handles[handle.request_id] = handle
            self._executor.submit(request)
        self._wake.set()
        return handle

    def _reuse(self, prompt: list[int], salt: str | None) -> int:
        """Return how many leading tokens were seen before, in whole blocks."""
        ends = range(BLOCK_TOKENS, len(prompt), BLOCK_TOKENS)
        prefixes = [(salt, tuple(prompt[:end])) for end in ends]
        known = [len(tokens) for key, tokens in prefixes if (key, tokens) in self._cached]
        self._cached.update(prefixes)
        return max(known, default=0) if self._reuses else 0

    def cancel(self, request_id: int) -> None:
        """End a request."""
        with self._lock:
            self._executor.cancel(request_id)
            self._handles.pop(request_id, None)

    def shutdown(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(5.0)
        self._executor.resource_manager.shutdown()

    def _run(self) -> None:
        while not self._stopping:
            if self._executor.has_work and not self.world.is_hung:
                try:
                    with self._lock:
                        self._executor.step()
                except Exception:
                    self._die()
                    return
                time.sleep(self.world.step_seconds)
            else:
                self._wake.wait(0.01)
                self._wake.clear()

    def _die(self) -> None:
        for handle in self._handles.values():
            handle.put(None)

    def _respond(self, request: LlmRequest) -> None:
        handle = self._handles.get(request.py_client_id or -1)
        tokens = request.get_tokens(0)[request.num_sent :]
        request.num_sent += len(tokens)
        if handle is not None and (tokens or request.finish_reason):
            handle.put((tokens, request.finish_reason, request.stop_reason))
