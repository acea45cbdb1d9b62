"""What the package is told, and what is never sent to it."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidRequest
from verify_service.engine.sampling import Rule, SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engines.tensorrt_llm.admission import check, servable_defaults
from verify_service.engines.tensorrt_llm.llm_arguments import (
    EngineLimits,
    graph_batch_sizes,
    kv_cache_arguments,
    llm_arguments,
    sampling_arguments,
)

LIMITS = EngineLimits(max_running=16, max_draft_tokens=8, context_length=4096, prefix_caching=True)
HAZARDS = {
    "max_concurrency", "draft_len_schedule", "acceptance_window", "max_beam_width",
    "acceptance_length_threshold", "sampler_type",
}  # fmt: skip


def sampling(**fields: object) -> dict[str, object]:
    params = SamplingParams(**fields)  # type: ignore[arg-type]  # field names
    return sampling_arguments(params, max_tokens=5, stop_token_ids=frozenset({9, 2}))


def test_greedy_is_said_in_the_packages_own_terms() -> None:
    """The executor refuses a top-p of 0, and one of 1 would be sampled from by some releases."""
    chosen = sampling()

    assert (chosen["temperature"], chosen["top_k"], chosen["top_p"]) == (1.0, 1, None)


def test_sampling_always_sends_all_three() -> None:
    """Unset top-k and top-p would mean greedy whatever the temperature."""
    chosen = sampling(temperature=0.7)

    assert (chosen["temperature"], chosen["top_k"], chosen["top_p"]) == (0.7, 0, 1.0)


def test_stop_tokens_stay_in_the_output_and_the_end_token_is_ours() -> None:
    chosen = sampling()

    assert chosen["stop_token_ids"] == [2, 9]
    assert chosen["include_stop_str_in_output"] is True
    assert chosen["end_id"] == -1
    assert chosen["ignore_eos"] is True
    assert "seed" not in chosen


def test_hazardous_arguments_are_never_set() -> None:
    arguments = llm_arguments("m", LIMITS) | kv_cache_arguments(LIMITS) | sampling()

    assert HAZARDS.isdisjoint(arguments)
    assert arguments["disable_overlap_scheduler"] is True
    assert arguments["stream_interval"] == 1
    assert arguments["tensor_parallel_size"] == 1


def test_a_step_has_room_for_every_chain() -> None:
    wide = EngineLimits(2048, 8, 4096, prefix_caching=False)

    assert llm_arguments("m", wide)["max_num_tokens"] == 2048 * 9


def test_kv_tokens_are_limited_only_when_asked() -> None:
    limited = EngineLimits(4, 4, 128, prefix_caching=False, max_kv_tokens=640)

    assert "max_tokens" not in kv_cache_arguments(LIMITS)
    assert kv_cache_arguments(limited)["max_tokens"] == 640
    assert kv_cache_arguments(limited)["enable_block_reuse"] is False


@pytest.mark.parametrize(
    ("max_running", "sizes"),
    [(1, [1]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_graphs_cover_every_batch(max_running: int, sizes: list[int]) -> None:
    assert graph_batch_sizes(max_running) == sizes


@pytest.mark.parametrize(
    ("field", "sampling_fields", "request_fields"),
    [
        ("sampling.repetition_penalty", {"repetition_penalty": 1.2}, {}),
        ("sampling.presence_penalty", {"presence_penalty": 0.1}, {}),
        ("sampling.frequency_penalty", {"frequency_penalty": 0.1}, {}),
        ("sampling.logit_bias", {"logit_bias": {1: 2.0}}, {}),
        ("sampling.min_p", {"min_p": 0.1}, {}),
        ("sampling.verification_rule", {"rule": Rule.REJECTION}, {}),
        ("limits.min_tokens", {}, {"limits": TokenLimits(5, min_tokens=1)}),
        ("num_logprobs", {}, {"num_logprobs": 0}),
        ("structured_output", {}, {"constraint": object()}),
    ],
)
def test_what_is_not_served_exactly_is_refused_by_name(
    field: str, sampling_fields: dict[str, object], request_fields: dict[str, object]
) -> None:
    request = Request(
        1,
        (1, 2),
        sampling=SamplingParams(**sampling_fields),  # type: ignore[arg-type]  # field names
        **request_fields,  # type: ignore[arg-type]  # field names
    )

    with pytest.raises(InvalidRequest, match="tensorrt-llm engine") as caught:
        check(request)
    assert (caught.value.field, caught.value.reason) == (field, "UNSUPPORTED")


def test_an_ordinary_request_is_served() -> None:
    params = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=3)

    check(Request(1, (1, 2), sampling=params))


def test_a_models_own_penalty_is_left_out_and_named() -> None:
    own = SamplingParams(temperature=0.6, top_k=20, repetition_penalty=1.05)

    kept, dropped = servable_defaults(own)

    assert kept == SamplingParams(temperature=0.6, top_k=20)
    assert dropped == ["repetition_penalty"]
