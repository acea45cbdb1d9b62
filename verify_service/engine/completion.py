"""Where emission ends: stop tokens, limits and the context end, also within an accepted run."""

from __future__ import annotations

from collections.abc import Iterable

from verify_service.engine.sampling import Fallback, FinishReason
from verify_service.engine.steps import SequenceStep, TokenLogprobs
from verify_service.engine.verification import Verification


def emit(
    verification: Verification, context_length: int, fallback: Fallback | None
) -> SequenceStep:
    """
    Return what a verification emits: its choices up to the first that ends the sequence.

    Call it before the tokens are committed.
    """
    sequence = verification.sequence
    choices = verification.verdict.choices if verification.verdict else ()
    limits = sequence.request.limits
    room = sequence.max_new_tokens(context_length)
    stop_at = _first(
        index for index, c in enumerate(choices) if c.token_id in limits.stop_token_ids
    )
    count = min(len(choices), room, len(choices) if stop_at is None else stop_at + 1)
    is_stop = stop_at is not None and stop_at < count
    reason = FinishReason.STOP if is_stop else FinishReason.LENGTH if count == room else None
    emitted = choices[:count]
    is_first = not sequence.has_emitted
    scheduled = sequence.first_scheduled or sequence.arrival
    return SequenceStep(
        sequence_id=sequence.sequence_id,
        token_ids=tuple(choice.token_id for choice in emitted),
        num_drafted=verification.selected.tree.num_nodes,
        num_accepted=count - 1,
        logprobs=tuple(_logprobs(choice.logprobs) for choice in emitted)
        if sequence.request.num_logprobs is not None
        else (),
        finish_reason=reason,
        matched_stop_token_id=emitted[-1].token_id if is_stop else None,
        is_prefill=is_first and not sequence.request.lockstep,
        num_cached_prompt_tokens=sequence.num_cached_prompt_tokens if is_first else 0,
        queue_seconds=scheduled - sequence.arrival if is_first else 0.0,
        fallback=fallback,
    )


def _logprobs(values: TokenLogprobs | None) -> TokenLogprobs:
    return values if values is not None else TokenLogprobs(0.0)


def _first(indices: Iterable[int]) -> int | None:
    return next(iter(indices), None)
