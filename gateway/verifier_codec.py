"""The messages of the link to a verifier, to and from values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from gateway.generation import (
    Capabilities,
    DraftFallback,
    DraftingChoice,
    DraftPool,
    FinishReason,
    ModelInfo,
    Sampling,
    SequenceRequest,
    Step,
    StructuredOutput,
    TokenLogprobs,
    VerificationRule,
    VerifierLoad,
)
from gateway.sampling_codec import overrides_from_proto, sampling_to_proto
from paceline.codec import duration_from_proto, duration_to_proto, speaks_our_protocol
from paceline.errors import PacelineError
from paceline.status import error_from_code
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as messages


def start_to_proto(number: int, request: SequenceRequest, now: float) -> messages.Start:
    """Return the message that starts, or resumes, a sequence."""
    remaining = None if request.deadline is None else duration_to_proto(request.deadline - now)
    return messages.Start(
        request_id=number,
        prompt_token_ids=request.prompt_token_ids,
        emitted_token_ids=request.emitted_token_ids,
        sampling=sampling_to_proto(request.sampling),
        limits=types_pb2.TokenLimits(
            max_tokens=request.limits.max_tokens,
            min_tokens=request.limits.min_tokens,
            stop_token_ids=request.limits.stop_token_ids,
            ignore_eos=request.limits.ignore_eos,
        ),
        priority=types_pb2.PriorityClass.ValueType(request.priority.value),
        time_remaining=remaining,
        drafting=drafting_to_proto(request.drafting),
        tenant=request.tenant,
        cache_salt=request.cache_salt,
        predicted_token_ids=request.predicted_token_ids,
        num_logprobs=request.num_logprobs,
        structured_output=structured_output_to_proto(request.structured_output),
        client_request_id=request.client_request_id,
        traceparent=request.trace.traceparent,
        tracestate=request.trace.tracestate,
    )


def structured_output_to_proto(
    wanted: StructuredOutput | None,
) -> types_pb2.StructuredOutput | None:
    """Return the message of a constraint."""
    if wanted is None:
        return None
    message = types_pb2.StructuredOutput()
    if wanted.kind == "choice":
        message.choice.options.extend(wanted.texts)
    else:
        setattr(message, wanted.kind, wanted.texts[0])
    return message


def drafting_to_proto(choice: DraftingChoice) -> types_pb2.DraftingPolicy:
    """Return the message of a drafting choice; a cause goes with the empty pool only."""
    fallback = DraftFallback.UNSPECIFIED if choice.pool else choice.fallback
    return types_pb2.DraftingPolicy(
        pool=choice.pool,
        max_draft_tokens=choice.max_draft_tokens,
        fallback=types_pb2.DraftFallback.ValueType(fallback.value),
    )


def step_from_proto(message: messages.StepResult) -> Step:
    """Return what a step did for one sequence."""
    # By position, from a slice, and without a look at what only the first result and the last one
    # have: this is made for every message.
    step = Step(
        tuple(message.token_ids[:]),
        message.num_drafted,
        message.num_accepted,
        _logprobs(message.logprobs) if message.logprobs else (),
        _FINISH_REASONS.get(message.finish_reason, FinishReason.ERROR),
        None,
        0,
        0.0,
        message.is_prefill,
        _fallback(message.fallback),
    )
    if not step.is_prefill and not step.finish_reason:
        return step
    has_stop = message.HasField("matched_stop_token_id")
    return step._replace(
        matched_stop_token_id=message.matched_stop_token_id if has_stop else None,
        cached_prompt_tokens=message.cached_prompt_tokens,
        queue_seconds=duration_from_proto(message.queue) if message.HasField("queue") else 0.0,
    )


def failure_from_proto(message: messages.Failure) -> PacelineError:
    """Return the error that ended one sequence."""
    has_retry = message.HasField("retry_after")
    return error_from_code(
        message.code,
        message.message,
        field=_field_of_client(message.field),
        reason=message.reason,
        retry_after_seconds=duration_from_proto(message.retry_after) if has_retry else None,
    )


def _field_of_client(field: str) -> str:
    """Return the field of the client's request that became a field of ``Start``."""
    if field.startswith("limits."):
        return field.replace("limits.", "stopping.", 1)
    return {"emitted_token_ids": "resume_token_ids"}.get(field, field)


def load_from_proto(message: messages.LoadReport) -> VerifierLoad:
    """Return how busy a verifier is; figures that make no sense are taken as unknown."""
    gain = message.estimated_gain
    return VerifierLoad(
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        max_running=message.max_running,
        kv_utilization=message.kv_utilization if math.isfinite(message.kv_utilization) else 0.0,
        step_seconds=duration_from_proto(message.step_time),
        estimated_gain=gain if math.isfinite(gain) and gain > 0.0 else 1.0,
    )


def model_info_from_proto(message: messages.GetModelInfoResponse) -> ModelInfo:
    """Return what a verifier serves; raises ``InvalidRequest`` for impossible defaults."""
    return ModelInfo(
        model=message.model,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        vocab_size=message.vocab_size,
        context_length=message.context_length,
        engine=message.engine,
        eos_token_ids=frozenset(message.eos_token_ids),
        capabilities=_capabilities(message.capabilities),
        speaks_our_protocol=speaks_our_protocol(message.protocol),
        draft_pools=tuple(_draft_pool(pool) for pool in message.draft_pools),
        default_sampling=overrides_from_proto(message.default_sampling).over(Sampling()),
        version=message.version,
    )


def _capabilities(message: messages.Capabilities) -> Capabilities:
    known = {rule.value for rule in VerificationRule}
    return Capabilities(
        trees=message.trees,
        verification_rules=frozenset(
            VerificationRule(rule) for rule in message.verification_rules if rule in known
        ),
        max_draft_tokens=message.max_draft_tokens,
        max_logprobs=message.max_logprobs,
        penalties=message.penalties,
        logit_bias=message.logit_bias,
        structured_output=message.structured_output,
        seeded_invariance=message.seeded_invariance,
    )


def _draft_pool(message: messages.DraftPool) -> DraftPool:
    return DraftPool(
        name=message.name,
        available=message.available,
        cause=_fallback(message.cause),
        detail=message.detail,
        drafter=message.drafter,
    )


_FINISH_REASONS: Final = {reason.value: reason for reason in FinishReason}
_FALLBACKS: Final = {cause.value: cause for cause in DraftFallback}


def _fallback(value: int) -> DraftFallback:
    return _FALLBACKS.get(value, DraftFallback.UNSUPPORTED)


def _logprobs(entries: Iterable[types_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(
            entry.logprob, tuple((top.token_id, top.logprob) for top in entry.top_logprobs)
        )
        for entry in entries
    )
