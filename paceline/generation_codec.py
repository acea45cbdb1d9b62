"""From the messages of the generation service to the client's values. Requests: the sibling."""

from __future__ import annotations

from collections.abc import Iterable

from paceline import events
from paceline.codec import duration_from_proto
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2


def event_from_proto(message: messages.StreamGenerateResponse) -> events.Event | None:
    """Return the event of a message; None for a kind that this version does not know."""
    match message.WhichOneof("event"):
        case "started":
            return _started(message.started)
        case "delta":
            return _delta(message.delta)
        case "finished":
            return _finished(message.finished)
        case "summary":
            return _summary(message.summary)
        case _:
            return None


def generation_from_proto(message: messages.GenerateResponse) -> events.Generation:
    """Return the whole answer of a unary call."""
    return events.Generation(
        request_id=message.request_id,
        model=message.model,
        sampling=_sampling(message.sampling),
        outputs=tuple(_output(output) for output in message.outputs),
        usage=_usage(message.usage),
        speculation=_speculation(message.speculation),
        timing=_timing(message.timing),
    )


def model_from_proto(message: messages.Model) -> events.Model:
    """Return the description of a served model."""
    return events.Model(
        name=message.name,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        vocab_size=message.vocab_size,
        context_length=message.context_length,
        has_chat_template=message.has_chat_template,
        engine=message.engine,
        draft_pools=tuple(_draft_pool(pool) for pool in message.draft_pools),
        num_verifiers=message.num_verifiers,
        num_ready_verifiers=message.num_ready_verifiers,
    )


def tokenization_from_proto(message: messages.TokenizeResponse) -> events.Tokenization:
    """Return the token ids of a prompt."""
    return events.Tokenization(tuple(message.token_ids), message.context_length)


def fallback_name(value: int) -> str:
    """Return the short name of a ``DraftFallback``; empty when unspecified."""
    names = types_pb2.DraftFallback.DESCRIPTOR.values_by_number
    if value == types_pb2.DRAFT_FALLBACK_UNSPECIFIED or value not in names:
        return "" if value == types_pb2.DRAFT_FALLBACK_UNSPECIFIED else "unknown"
    return names[value].name.removeprefix("DRAFT_FALLBACK_").lower()


def _started(message: messages.Started) -> events.Started:
    return events.Started(
        message.request_id, message.model, _sampling(message.sampling), message.prompt_tokens
    )


def _delta(message: messages.Delta) -> events.Delta:
    return events.Delta(
        text=message.text,
        token_ids=tuple(message.token_ids),
        completion_tokens=message.completion_tokens,
        index=message.index,
        logprobs=_logprobs(message.logprobs),
    )


def _finished(message: messages.Finished) -> events.Finished:
    return events.Finished(
        finish_reason=_finish_reason(message.finish_reason),
        matched_stop=_matched_stop(message.matched_stop),
        index=message.index,
    )


def _summary(message: messages.Summary) -> events.Summary:
    return events.Summary(
        _usage(message.usage), _speculation(message.speculation), _timing(message.timing)
    )


def _output(message: messages.Output) -> events.Output:
    return events.Output(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_finish_reason(message.finish_reason),
        matched_stop=_matched_stop(message.matched_stop),
        index=message.index,
        logprobs=_logprobs(message.logprobs),
    )


def _sampling(message: types_pb2.SamplingParams) -> events.Sampling:
    return events.Sampling(
        seed=message.seed,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        verification_rule="rejection"
        if message.verification_rule == types_pb2.VERIFICATION_RULE_REJECTION
        else "sample_and_match",
    )


def _usage(message: types_pb2.Usage) -> events.Usage:
    return events.Usage(
        message.prompt_tokens, message.completion_tokens, message.cached_prompt_tokens
    )


def _speculation(message: types_pb2.SpeculationStats) -> events.Speculation:
    return events.Speculation(
        num_spec_steps=message.num_spec_steps,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_draft_tokens=message.num_accepted_draft_tokens,
        acceptance_histogram=tuple(message.acceptance_histogram),
        mean_acceptance_length=message.mean_acceptance_length,
        draft_acceptance_rate=message.draft_acceptance_rate,
        num_empty_steps=message.num_empty_steps,
        per_step_accepted=tuple(message.per_step_accepted),
        per_step_drafted=tuple(message.per_step_drafted),
        pool=message.pool,
        fallbacks=tuple(fallback_name(value) for value in message.fallbacks),
        pool_cause=_pool_cause(message.pool_cause),
        workload=message.workload,
    )


def _pool_cause(value: int) -> str:
    name = types_pb2.PoolCause.DESCRIPTOR.values_by_number.get(value)
    return name.name.removeprefix("POOL_CAUSE_").lower() if value and name else ""


def _timing(message: types_pb2.Timing) -> events.Timing:
    return events.Timing(
        queue_seconds=duration_from_proto(message.queue),
        time_to_first_token_seconds=duration_from_proto(message.time_to_first_token),
        total_seconds=duration_from_proto(message.total),
    )


def _draft_pool(message: messages.ModelDraftPool) -> events.DraftPool:
    return events.DraftPool(
        name=message.name,
        available=message.available,
        cause=fallback_name(message.cause),
        detail=message.detail,
        drafter=message.drafter,
    )


def _logprobs(entries: Iterable[types_pb2.TokenLogprobs]) -> tuple[events.TokenLogprobs, ...]:
    return tuple(
        events.TokenLogprobs(
            entry.logprob, tuple((top.token_id, top.logprob) for top in entry.top_logprobs)
        )
        for entry in entries
    )


def _finish_reason(value: int) -> events.FinishReason:
    name = types_pb2.FinishReason.DESCRIPTOR.values_by_number.get(value)
    return events.FinishReason(name.name.removeprefix("FINISH_REASON_").lower() if name else "")


def _matched_stop(message: messages.MatchedStop) -> str | int | None:
    match message.WhichOneof("stop"):
        case "text":
            return message.text
        case "token_id":
            return message.token_id
        case _:
            return None
