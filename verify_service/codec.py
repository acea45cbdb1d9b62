"""Conversions between the engine's values and their messages; protobuf stops here."""

from __future__ import annotations

from paceline.codec import duration_from_proto, duration_to_proto
from paceline.errors import InvalidRequest
from paceline.noise import mix64
from paceline.status import status_code
from paceline.v1 import draft_service_pb2, types_pb2, verify_service_pb2
from verify_service.engine.constraint import Constraint
from verify_service.engine.sampling import (
    Fallback,
    FinishReason,
    Rule,
    SamplingParams,
    TokenLimits,
)
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.steps import (
    Load,
    SequenceFailure,
    SequenceStep,
    SessionCommitted,
    SessionOpened,
)
from verify_service.engine_backend import EngineCapabilities
from verify_service.request_limits import check_request, check_sampling
from verify_service.targets.target import TargetInfo

_FINISH = {
    None: types_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: types_pb2.FINISH_REASON_DEADLINE,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
}


_RULES = {
    Rule.SAMPLE_AND_MATCH: types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH,
    Rule.REJECTION: types_pb2.VERIFICATION_RULE_REJECTION,
}


def capabilities_to_proto(
    capabilities: EngineCapabilities, *, structured_output: bool
) -> verify_service_pb2.Capabilities:
    """Return the message of an engine's capabilities; grammars need a compiler besides."""
    return verify_service_pb2.Capabilities(
        trees=capabilities.trees,
        verification_rules=[_RULES[rule] for rule in capabilities.rules],
        max_draft_tokens=capabilities.max_draft_tokens,
        max_logprobs=capabilities.max_logprobs,
        penalties=capabilities.penalties,
        logit_bias=capabilities.logit_bias,
        structured_output=structured_output and capabilities.structured_output,
        seeded_invariance=capabilities.seeded_invariance,
        prefix_caching=capabilities.prefix_caching,
    )


def fallback_to_proto(cause: Fallback | None) -> types_pb2.DraftFallback.ValueType:
    """Return the message enum of a fallback cause."""
    if cause is None:
        return types_pb2.DRAFT_FALLBACK_UNSPECIFIED
    return types_pb2.DraftFallback.Value(f"DRAFT_FALLBACK_{cause.name}")


def fallback_from_proto(cause: types_pb2.DraftFallback.ValueType) -> Fallback | None:
    """Return the cause of a message enum; None for UNSPECIFIED and numbers of later releases."""
    if cause not in types_pb2.DraftFallback.values():
        return None
    name = types_pb2.DraftFallback.Name(cause).removeprefix("DRAFT_FALLBACK_")
    return Fallback.__members__.get(name)


def drafting_from_proto(message: types_pb2.DraftingPolicy) -> Drafting:
    """Return the drafting policy of a message."""
    return Drafting(message.pool, message.max_draft_tokens, fallback_from_proto(message.fallback))


def sampling_from_proto(
    message: types_pb2.SamplingParams, info: TargetInfo, defaults: SamplingParams
) -> SamplingParams:
    """Return the parameters of a message, unset ones taken from ``defaults``."""

    def given(name: str, default: float) -> float:
        return float(getattr(message, name)) if message.HasField(name) else default  # type: ignore[arg-type]  # field names

    params = SamplingParams(
        temperature=given("temperature", defaults.temperature),
        top_k=message.top_k if message.HasField("top_k") else defaults.top_k,
        top_p=given("top_p", defaults.top_p),
        min_p=given("min_p", defaults.min_p),
        repetition_penalty=given("repetition_penalty", defaults.repetition_penalty),
        presence_penalty=given("presence_penalty", defaults.presence_penalty),
        frequency_penalty=given("frequency_penalty", defaults.frequency_penalty),
        logit_bias=dict(message.logit_bias),
        seed=message.seed,
        rule=_rule_from_proto(message.verification_rule),
    )
    check_sampling(params, info)
    return params


def sampling_to_proto(params: SamplingParams) -> types_pb2.SamplingParams:
    """Return the message of parameters, without a seed."""
    return types_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        verification_rule=types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH,
    )


def request_from_proto(
    message: verify_service_pb2.Start,
    *,
    sequence_id: int,
    info: TargetInfo,
    defaults: SamplingParams,
    now: float,
    constraint: Constraint | None = None,
    lockstep: bool = False,
) -> Request:
    """
    Return the request of a ``Start`` message.

    ``now`` is the engine's clock, against which the deadline is set. Raises ``InvalidRequest``
    naming the field.
    """
    limits = message.limits
    eos = () if limits.ignore_eos else info.eos_token_ids
    used = len(message.prompt_token_ids)
    request = Request(
        sequence_id=sequence_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        emitted_token_ids=tuple(message.emitted_token_ids),
        sampling=sampling_from_proto(message.sampling, info, defaults),
        limits=TokenLimits(
            max_tokens=limits.max_tokens
            if limits.HasField("max_tokens")
            else max(info.context_length - used, 1),
            min_tokens=limits.min_tokens,
            stop_token_ids=frozenset((*limits.stop_token_ids, *eos)),
        ),
        priority=_priority_from_proto(message.priority),
        deadline=now + duration_from_proto(message.time_remaining)
        if message.HasField("time_remaining")
        else None,
        tenant=message.tenant,
        cache_salt=message.cache_salt,
        predicted_token_ids=tuple(message.predicted_token_ids),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        constraint=constraint,
        lockstep=lockstep,
    )
    check_request(request, info)
    return request


def step_to_proto(step: SequenceStep, request_id: int) -> verify_service_pb2.StepResult:
    """Return the message of what one step did for one request."""
    message = verify_service_pb2.StepResult(
        request_id=request_id,
        token_ids=step.token_ids,
        num_drafted=step.num_drafted,
        num_accepted=step.num_accepted,
        logprobs=[
            types_pb2.TokenLogprobs(
                logprob=each.logprob,
                top_logprobs=[
                    types_pb2.TopLogprob(token_id=token_id, logprob=logprob)
                    for token_id, logprob in each.top
                ],
            )
            for each in step.logprobs
        ],
        finish_reason=_FINISH[step.finish_reason],
        matched_stop_token_id=step.matched_stop_token_id,
        cached_prompt_tokens=step.num_cached_prompt_tokens,
        is_prefill=step.is_prefill,
        fallback=fallback_to_proto(step.fallback),
    )
    if step.queue_seconds > 0:
        message.queue.CopyFrom(duration_to_proto(step.queue_seconds))
    return message


def failure_to_proto(failure: SequenceFailure, request_id: int) -> verify_service_pb2.Failure:
    """Return the message of a request's end through an error."""
    error = failure.error
    message = verify_service_pb2.Failure(
        request_id=request_id,
        code=status_code(error).value[0],
        reason=error.reason,
        message=error.message,
        field=error.field,
    )
    if error.retry_after_seconds is not None:
        message.retry_after.CopyFrom(duration_to_proto(error.retry_after_seconds))
    return message


def load_to_proto(load: Load, max_running: int) -> verify_service_pb2.LoadReport:
    """Return the message of a load."""
    return verify_service_pb2.LoadReport(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        kv_utilization=load.kv_utilization,
        step_time=duration_to_proto(load.step_seconds),
        rows=load.num_rows,
        estimated_gain=load.estimated_gain,
        max_running=max_running,
    )


def open_to_proto(
    event: SessionOpened, max_tree_depth: int, *, may_draw: bool = False
) -> draft_service_pb2.SessionOpen:
    """
    Return the message that tells a drafter about a sequence.

    Under REJECTION it learns nothing of the seed, since a drafter that could foretell the
    verifier's numbers could aim at them. ``may_draw``: its draft distributions are believed.
    """
    request = event.request
    sampling = request.sampling
    is_rejection = sampling.rule is Rule.REJECTION
    wants_drawn = is_rejection and may_draw and not sampling.is_greedy
    return draft_service_pb2.SessionOpen(
        session_id=request.sequence_id,
        committed_token_ids=event.committed_token_ids,
        seed=mix64(request.sequence_id) if is_rejection else sampling.seed,
        temperature=0.0 if is_rejection and not wants_drawn else sampling.temperature,
        tenant=request.tenant,
        predicted_token_ids=request.predicted_token_ids,
        max_tree_depth=max_tree_depth,
        prompt_len=len(request.prompt_token_ids),
        wants_drawn_children=wants_drawn,
    )


def commit_to_proto(event: SessionCommitted) -> draft_service_pb2.SessionCommit:
    """Return the message that tells a drafter what was committed."""
    return draft_service_pb2.SessionCommit(
        session_id=event.sequence_id, base_len=event.base_len, token_ids=event.token_ids
    )


def _priority_from_proto(priority: types_pb2.PriorityClass.ValueType) -> int:
    if priority not in types_pb2.PriorityClass.values():
        raise InvalidRequest(f"priority: {priority} is unknown", field="priority")
    return priority or types_pb2.PRIORITY_CLASS_STANDARD


def _rule_from_proto(rule: types_pb2.VerificationRule.ValueType) -> Rule:
    match rule:
        case types_pb2.VERIFICATION_RULE_UNSPECIFIED | types_pb2.VERIFICATION_RULE_SAMPLE_AND_MATCH:
            return Rule.SAMPLE_AND_MATCH
        case types_pb2.VERIFICATION_RULE_REJECTION:
            return Rule.REJECTION
        case _:
            raise InvalidRequest(
                f"sampling.verification_rule: {rule} is unknown", field="sampling.verification_rule"
            )
