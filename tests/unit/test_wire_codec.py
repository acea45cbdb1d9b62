"""Values survive the wire, and a tree stays small on it."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from paceline import codec
from paceline.errors import InvalidRequest, InvalidTree
from paceline.tree import TokenTree
from paceline.v1 import types_pb2, verify_service_pb2
from verify_service.codec import (
    drafting_from_proto,
    failure_to_proto,
    fallback_from_proto,
    fallback_to_proto,
    request_from_proto,
    sampling_from_proto,
    sampling_to_proto,
    step_to_proto,
)
from verify_service.engine.sampling import Fallback, FinishReason, SamplingParams
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.steps import SequenceFailure, SequenceStep, TokenLogprobs
from verify_service.targets.target import TargetInfo

LARGE_VOCAB = 262_144
INFO = TargetInfo(
    name="m",
    engine="table",
    vocab_size=32,
    num_token_ids=30,
    context_length=100,
    eos_token_ids=(29,),
    tokenizer_fingerprint="",
)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Return any tree, with or without log-probabilities."""
    num_nodes = draw(st.integers(0, 40))
    parents = tuple(draw(st.integers(0, node)) for node in range(num_nodes))
    token_ids = tuple(draw(st.integers(0, 2**26 - 1)) * 64 + node for node in range(num_nodes))
    log_probs = draw(
        st.just(()) | st.tuples(*[st.floats(max_value=0.0, allow_nan=False, width=32)] * num_nodes)
    )
    return TokenTree(token_ids, parents, log_probs)


@given(trees())
def test_tree_survives_the_wire(tree: TokenTree) -> None:
    wire = codec.tree_to_proto(tree).SerializeToString()

    assert codec.tree_from_proto(types_pb2.TokenTree.FromString(wire)) == tree


@pytest.mark.parametrize("shape", ["chain", "star", "binary"])
def test_tree_of_64_nodes_takes_at_most_600_bytes(shape: str) -> None:
    """Bar 4: ids from a vocabulary of 262 144, log-probabilities included."""
    parents = {
        "chain": tuple(range(64)),
        "star": (0,) * 64,
        "binary": tuple(node // 2 for node in range(64)),
    }[shape]
    token_ids = tuple(LARGE_VOCAB - 1 - node for node in range(64))
    tree = TokenTree(token_ids, parents, tuple(-0.01 * node for node in range(64)))

    assert codec.tree_to_proto(tree).ByteSize() <= 600


def test_message_without_a_tree_in_it_is_refused() -> None:
    with pytest.raises(InvalidTree):
        codec.tree_from_proto(types_pb2.TokenTree(token_ids=[1], parents=[3]))


def test_protocol_range_holds_itself_and_refuses_others() -> None:
    """B074: another protocol version is told apart."""
    later = types_pb2.ProtocolRange(min_version=7, max_version=9)

    assert codec.speaks_our_protocol(codec.protocol_range())
    assert not codec.speaks_our_protocol(later)
    assert not codec.speaks_our_protocol(types_pb2.ProtocolRange())


@given(st.floats(0, 1e6))
def test_duration_survives_the_wire_to_the_microsecond(seconds: float) -> None:
    assert codec.duration_from_proto(codec.duration_to_proto(seconds)) == pytest.approx(
        seconds, abs=1e-6
    )


@pytest.mark.parametrize("seconds", [float("inf"), 2.0**62, -(2.0**62), float("nan")])
def test_a_duration_beyond_all_bounds_becomes_the_nearest_that_there_is(seconds: float) -> None:
    """Verifiers say what they like; a request must not end in it."""
    assert 0.0 <= codec.duration_from_proto(codec.duration_to_proto(seconds)) <= 315_576_000_000


def test_duration_is_never_negative() -> None:
    assert codec.duration_from_proto(codec.duration_to_proto(-3.0)) == 0.0


@pytest.mark.parametrize("cause", [None, *Fallback])
def test_every_fallback_survives_the_wire(cause: Fallback | None) -> None:
    assert fallback_from_proto(fallback_to_proto(cause)) is cause


def test_every_fallback_of_the_wire_has_a_cause() -> None:
    named = [number for number in types_pb2.DraftFallback.values() if number]

    assert {fallback_from_proto(number) for number in named} == set(Fallback)


def test_fallback_of_a_later_release_is_no_error() -> None:
    """B074: one unknown number must not end a stream that many requests share."""
    policy = types_pb2.DraftingPolicy.FromString(struct.pack("BB", 3 << 3, 99))

    assert drafting_from_proto(policy) == Drafting()


def _f32(value: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10, width=32),
    top_k=st.integers(0, 2**32 - 1),
    top_p=st.floats(_f32(0.001), 1, width=32),
    min_p=st.floats(0, 0.875, width=32),
    repetition_penalty=st.floats(_f32(0.001), 10, width=32),
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    logit_bias=st.dictionaries(st.integers(0, 29), st.floats(-100, 100, width=32), max_size=4),
)


@given(sampling)
def test_sampling_survives_the_wire(params: SamplingParams) -> None:
    message = sampling_to_proto(params)

    assert sampling_from_proto(message, INFO, SamplingParams(temperature=3.0)) == params


@given(sampling)
def test_unset_sampling_takes_every_default(defaults: SamplingParams) -> None:
    """B010: one set of defaults, whoever asks."""
    params = sampling_from_proto(types_pb2.SamplingParams(seed=5), INFO, defaults)

    assert sampling_to_proto(params) == sampling_to_proto(defaults_without_bias(defaults))
    assert params.seed == 5


def defaults_without_bias(defaults: SamplingParams) -> SamplingParams:
    """Return the defaults as a request takes them: a bias is never one."""
    return SamplingParams(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
        presence_penalty=defaults.presence_penalty,
        frequency_penalty=defaults.frequency_penalty,
    )


def _request(**fields: object) -> Request:
    message = verify_service_pb2.Start(prompt_token_ids=[1, 2, 3])
    message.MergeFrom(verify_service_pb2.Start(**fields))  # type: ignore[arg-type]  # field names
    return request_from_proto(
        message, sequence_id=7, info=INFO, defaults=SamplingParams(), now=100.0
    )


def test_unset_limits_reach_to_the_end_of_the_context() -> None:
    request = _request()

    assert request.limits.max_tokens == 97
    assert request.limits.stop_token_ids == {29}
    assert request.deadline is None
    assert request.num_logprobs is None
    assert request.priority == types_pb2.PRIORITY_CLASS_STANDARD


def test_limits_and_options_are_all_read() -> None:
    request = _request(
        emitted_token_ids=[4],
        limits=types_pb2.TokenLimits(
            max_tokens=9, min_tokens=2, stop_token_ids=[5, 6], ignore_eos=True
        ),
        priority=types_pb2.PRIORITY_CLASS_BATCH,
        time_remaining=Duration(seconds=2, nanos=500_000_000),
        tenant="t",
        cache_salt="s",
        predicted_token_ids=[1],
        num_logprobs=0,
    )

    assert request.emitted_token_ids == (4,)
    assert (request.limits.max_tokens, request.limits.min_tokens) == (9, 2)
    assert request.limits.stop_token_ids == {5, 6}
    assert request.priority == types_pb2.PRIORITY_CLASS_BATCH
    assert request.deadline == 102.5
    assert (request.tenant, request.cache_salt) == ("t", "s")
    assert request.predicted_token_ids == (1,)
    assert request.num_logprobs == 0


@pytest.mark.parametrize("seconds", [2**62, -(2**62)])
def test_time_that_no_calendar_holds_is_only_far_away(seconds: int) -> None:
    """One absurd duration must not end a stream that many requests share."""
    request = _request(time_remaining=Duration(seconds=seconds))

    assert request.deadline == pytest.approx(100.0 + seconds)


@pytest.mark.parametrize("reason", FinishReason)
def test_every_finish_reason_has_its_namesake_on_the_wire(reason: FinishReason) -> None:
    message = step_to_proto(SequenceStep(1, (), finish_reason=reason), 5)

    assert types_pb2.FinishReason.Name(message.finish_reason) == f"FINISH_REASON_{reason.name}"


def test_step_is_told_in_full() -> None:
    step = SequenceStep(
        1,
        (3, 4),
        num_drafted=6,
        num_accepted=1,
        logprobs=(TokenLogprobs(-0.5, ((3, -0.5), (9, -1.0))), TokenLogprobs(-0.25)),
        finish_reason=FinishReason.STOP,
        matched_stop_token_id=4,
        is_prefill=True,
        num_cached_prompt_tokens=16,
        queue_seconds=1.5,
        fallback=Fallback.LOAD,
    )

    message = step_to_proto(step, 99)

    assert message.request_id == 99
    assert list(message.token_ids) == [3, 4]
    assert (message.num_drafted, message.num_accepted) == (6, 1)
    assert [each.logprob for each in message.logprobs] == [-0.5, -0.25]
    assert [top.token_id for top in message.logprobs[0].top_logprobs] == [3, 9]
    assert message.matched_stop_token_id == 4
    assert message.is_prefill
    assert message.cached_prompt_tokens == 16
    assert message.queue.ToMilliseconds() == 1500
    assert message.fallback == types_pb2.DRAFT_FALLBACK_LOAD


def test_stop_token_zero_is_told_apart_from_none() -> None:
    stopped = step_to_proto(SequenceStep(1, (0,), matched_stop_token_id=0), 5)
    running = step_to_proto(SequenceStep(1, (0,)), 5)

    assert stopped.HasField("matched_stop_token_id")
    assert not running.HasField("matched_stop_token_id")


def test_failure_names_code_reason_and_field() -> None:
    error = InvalidRequest("top_p is 2", field="sampling.top_p", retry_after_seconds=0.25)

    message = failure_to_proto(SequenceFailure(1, error), 9)

    assert (message.request_id, message.code) == (9, 3)
    assert (message.reason, message.field) == ("INVALID_REQUEST", "sampling.top_p")
    assert message.message == "top_p is 2"
    assert message.retry_after.ToMilliseconds() == 250
