"""
What the package is told: engine arguments and sampling parameters, all of them explicit.

Left out on purpose: ``max_concurrency``, ``draft_len_schedule`` and ``acceptance_*`` (they switch
speculation off for good or change meaning between releases), beams, ``sampler_type``.
"""

from __future__ import annotations

from dataclasses import dataclass

from verify_service.engine.sampling import SamplingParams

NO_TOKEN = -1
MIN_STEP_TOKENS = 8192
KV_MEMORY_FRACTION = 0.9
ADVISED_DRAFT_TOKENS = 8
"""Every step pays for this many positions per request, drafted or not."""
MOST_DRAFT_TOKENS = 31
"""The package packs masks into 32 columns, one of them the committed token's."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The engine's fixed sizes."""

    max_running: int
    max_draft_tokens: int
    context_length: int
    prefix_caching: bool
    max_kv_tokens: int = 0
    """0: as much as GPU memory holds."""


def llm_arguments(model: str, limits: EngineLimits) -> dict[str, object]:
    """Return the arguments of ``LLM`` that are plain values."""
    return {
        "model": model,
        "skip_tokenizer_init": True,
        "tensor_parallel_size": 1,
        "backend": "pytorch",
        "attn_backend": "TRTLLM",
        "disable_overlap_scheduler": True,
        "enable_chunked_prefill": True,
        "stream_interval": 1,
        "max_batch_size": limits.max_running,
        "max_seq_len": limits.context_length,
        "max_num_tokens": max(MIN_STEP_TOKENS, limits.max_running * (1 + limits.max_draft_tokens)),
    }


def kv_cache_arguments(limits: EngineLimits) -> dict[str, object]:
    """Return the arguments of ``KvCacheConfig``."""
    arguments: dict[str, object] = {
        "enable_block_reuse": limits.prefix_caching,
        "free_gpu_memory_fraction": KV_MEMORY_FRACTION,
    }
    if limits.max_kv_tokens:
        arguments["max_tokens"] = limits.max_kv_tokens
    return arguments


def graph_batch_sizes(max_running: int) -> list[int]:
    """Return the batch sizes to capture: 1, 2, 4, then steps of 8, up to the largest batch."""
    return sorted({1, 2, 4, *range(8, max_running, 8), max_running} & set(range(max_running + 1)))


def sampling_arguments(
    params: SamplingParams, *, max_tokens: int, stop_token_ids: frozenset[int]
) -> dict[str, object]:
    """
    Return the arguments of the package's ``SamplingParams``.

    Temperature alone does not make it sample: unset or zero top-k and top-p mean greedy whatever
    the temperature, and the other way round. So all three are always given. Greedy is top-k 1
    without a top-p: the executor refuses a top-p of 0, and samplers differ in which of two cuts
    they look at first. The seed is not given: the sampler has one generator for all requests and
    does not read it.
    """
    choice: dict[str, object] = (
        {"temperature": 1.0, "top_k": 1, "top_p": None}
        if params.is_greedy
        else {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
    )
    return {
        **choice,
        "max_tokens": max_tokens,
        "end_id": NO_TOKEN,
        "pad_id": 0,
        # Ours come back as the last token; the package would cut them off by default.
        "stop_token_ids": sorted(stop_token_ids) or None,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "n": 1,
        "best_of": 1,
        "use_beam_search": False,
        "detokenize": False,
    }
