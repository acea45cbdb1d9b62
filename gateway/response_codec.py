"""From what a relay says to the messages of the generation service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.generation import StatisticsLevel, TokenLogprobs
from gateway.relay import Delta, Event, Finished, RequestFigures, Started, Summary
from gateway.sampling_codec import sampling_to_proto
from gateway.speculation_record import SpeculationRecord
from gateway.verifier_pool import ServedModel
from paceline.codec import duration_to_proto
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2

_MAX_COUNT: Final = (1 << 32) - 1
"""A sum of what verifiers say; each may say anything."""


def event_to_proto(event: Event) -> messages.StreamGenerateResponse:
    """Return the message of one event of a stream."""
    match event:
        case Delta():
            return _delta(event)
        case Started():
            return messages.StreamGenerateResponse(started=_started(event))
        case Finished():
            return messages.StreamGenerateResponse(finished=_finished(event))
        case Summary():
            return messages.StreamGenerateResponse(summary=_summary(event.figures))


class ResponseBuilder:
    """Gathers the events of one request into the answer of a unary call."""

    def __init__(self) -> None:
        self._response = messages.GenerateResponse()

    def add(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case Started():
                self._response.request_id = event.request_id
                self._response.model = event.model
                self._response.sampling.CopyFrom(sampling_to_proto(event.sampling))
            case Delta():
                output = self._output(event.output_index)
                output.text += event.text
                output.token_ids.extend(event.token_ids)
                output.logprobs.extend(_logprobs(event.logprobs))
            case Finished():
                output = self._output(event.index)
                output.finish_reason = types_pb2.FinishReason.ValueType(event.reason)
                if event.matched_stop is not None:
                    output.matched_stop.CopyFrom(_matched_stop(event.matched_stop))
            case Summary():
                summary = _summary(event.figures)
                self._response.usage.CopyFrom(summary.usage)
                self._response.timing.CopyFrom(summary.timing)
                if summary.HasField("speculation"):
                    self._response.speculation.CopyFrom(summary.speculation)

    def build(self) -> messages.GenerateResponse:
        """Return the whole answer."""
        return self._response

    def _output(self, index: int) -> messages.Output:
        outputs = self._response.outputs
        while len(outputs) <= index:
            outputs.add(index=len(outputs))
        return outputs[index]


def model_to_proto(model: ServedModel, *, has_chat_template: bool) -> messages.Model:
    """Return the description of a served model."""
    info = model.info
    return messages.Model(
        name=info.model,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        has_chat_template=has_chat_template,
        engine=info.engine,
        draft_pools=[
            messages.ModelDraftPool(
                name=pool.name,
                available=pool.available,
                cause=types_pb2.DraftFallback.ValueType(pool.cause),
                detail=pool.detail,
                drafter=pool.drafter,
            )
            for pool in info.draft_pools
        ],
        default_sampling=_without_seed(sampling_to_proto(info.default_sampling)),
        num_verifiers=model.num_verifiers,
        num_ready_verifiers=model.num_ready_verifiers,
    )


def _without_seed(message: types_pb2.SamplingParams) -> types_pb2.SamplingParams:
    message.ClearField("seed")
    return message


def _started(event: Started) -> messages.Started:
    return messages.Started(
        request_id=event.request_id,
        model=event.model,
        sampling=sampling_to_proto(event.sampling),
        prompt_tokens=event.prompt_tokens,
    )


def _delta(event: Delta) -> messages.StreamGenerateResponse:
    # Filled in place: a constructor would make a second message and copy it.
    response = messages.StreamGenerateResponse()
    delta = response.delta
    delta.index, delta.text = event.output_index, event.text
    delta.completion_tokens = event.completion_tokens
    if event.token_ids:
        delta.token_ids.extend(event.token_ids)
    if event.logprobs:
        delta.logprobs.extend(_logprobs(event.logprobs))
    return response


def _finished(event: Finished) -> messages.Finished:
    matched = event.matched_stop
    return messages.Finished(
        index=event.index,
        finish_reason=types_pb2.FinishReason.ValueType(event.reason),
        matched_stop=None if matched is None else _matched_stop(matched),
    )


def _matched_stop(matched: str | int) -> messages.MatchedStop:
    if isinstance(matched, str):
        return messages.MatchedStop(text=matched)
    return messages.MatchedStop(token_id=matched)


def _summary(figures: RequestFigures) -> messages.Summary:
    with_speculation = figures.statistics is not StatisticsLevel.NONE
    return messages.Summary(
        usage=types_pb2.Usage(
            prompt_tokens=figures.prompt_tokens,
            completion_tokens=figures.completion_tokens,
            cached_prompt_tokens=figures.cached_prompt_tokens,
        ),
        speculation=_speculation(figures.speculation) if with_speculation else None,
        timing=types_pb2.Timing(
            queue=duration_to_proto(figures.queue_seconds),
            time_to_first_token=duration_to_proto(figures.time_to_first_token_seconds),
            total=duration_to_proto(figures.total_seconds),
        ),
    )


def _speculation(record: SpeculationRecord) -> types_pb2.SpeculationStats:
    return types_pb2.SpeculationStats(
        num_spec_steps=record.num_spec_steps,
        num_draft_tokens=min(record.num_draft_tokens, _MAX_COUNT),
        num_accepted_draft_tokens=record.num_accepted_draft_tokens,
        acceptance_histogram=record.acceptance_histogram,
        mean_acceptance_length=record.mean_acceptance_length,
        draft_acceptance_rate=record.draft_acceptance_rate,
        per_step_accepted=record.per_step_accepted or (),
        per_step_drafted=record.per_step_drafted or (),
        pool=record.pool,
        fallbacks=[types_pb2.DraftFallback.ValueType(cause) for cause in record.fallbacks],
        num_empty_steps=record.num_empty_steps,
        pool_cause=types_pb2.PoolCause.ValueType(record.pool_cause),
        workload=record.workload,
    )


def _logprobs(entries: Iterable[TokenLogprobs]) -> list[types_pb2.TokenLogprobs]:
    return [
        types_pb2.TokenLogprobs(
            logprob=entry.logprob,
            top_logprobs=[
                types_pb2.TopLogprob(token_id=token_id, logprob=logprob)
                for token_id, logprob in entry.top
            ],
        )
        for entry in entries
    ]
