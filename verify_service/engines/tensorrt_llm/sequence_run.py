"""
One sequence on the package's engine: from its cumulative outputs to ``SequenceStep`` values.

Where emission ends is decided here, by the same rules as in the step engine, whatever the package
says: stop tokens and limits also hold within an accepted run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence as Tokens

from verify_service.engine.sampling import Fallback, FinishReason
from verify_service.engine.sequence import Sequence
from verify_service.engine.steps import SequenceStep, TreeFact
from verify_service.engines.tensorrt_llm.package_view import Completion, RequestHandle

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "timeout": FinishReason.DEADLINE,
    "cancelled": FinishReason.CANCELLED,
}


class SequenceRun:
    """The engine's state of one request."""

    def __init__(self, sequence: Sequence, context_length: int) -> None:
        self.sequence = sequence
        self.handle: RequestHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.proposals: deque[TreeFact] = deque()
        """Of a lockstep sequence: trees that wait for their verdict."""
        self.finished = False
        self._context_length = context_length
        self._num_taken = 0
        self._placed = (0, 0)

    @property
    def sequence_id(self) -> int:
        """The service-wide id."""
        return self.sequence.sequence_id

    @property
    def client_id(self) -> int | None:
        """The package's id of the request under way; drafts travel under it."""
        return None if self.handle is None else self.handle.request_id

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self.sequence.max_new_tokens(self._context_length)

    @property
    def is_lockstep(self) -> bool:
        """Whether it runs only for proposals."""
        return self.sequence.request.lockstep

    def begin(self, handle: RequestHandle) -> None:
        """Take outputs from ``handle`` from now on."""
        self.handle = handle
        self._num_taken = 0
        self._placed = (0, 0)

    def placed(self, base_len: int, num_drafted: int) -> None:
        """Take note of a chain under verification."""
        self._placed = (base_len, num_drafted)

    def take(self, completion: Completion) -> tuple[int, ...]:
        """Return the tokens that are new in a cumulative output, cut where emission ends."""
        new = [int(token_id) for token_id in completion.token_ids[self._num_taken :]]
        self._num_taken += len(new)
        new.extend(self._swallowed_stop(completion, new))
        stops = self.sequence.request.limits.stop_token_ids
        for count, token_id in enumerate(new, start=1):
            if token_id in stops:
                return tuple(new[: min(count, self.room)])
        return tuple(new[: self.room])

    def step(
        self, token_ids: tuple[int, ...], reported: str | None, fallback: Fallback | None
    ) -> SequenceStep:
        """
        Commit ``token_ids`` and return what to publish.

        ``reported`` is the package's finish reason; it counts where our own rules say nothing.
        """
        sequence = self.sequence
        base_len, room = len(sequence.token_ids), self.room
        is_first = not sequence.has_emitted
        drafted, accepted = (0, 0) if is_first else self._accepted(base_len, len(token_ids))
        reason = self._reason(token_ids, room) or _reported(reported)
        sequence.token_ids.extend(token_ids)
        sequence.has_emitted = sequence.has_emitted or bool(token_ids)
        self.finished = reason is not None
        stopped = reason is FinishReason.STOP and self._ends_with_stop(token_ids)
        scheduled = sequence.first_scheduled or sequence.arrival
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=token_ids,
            num_drafted=drafted,
            num_accepted=accepted,
            finish_reason=reason,
            matched_stop_token_id=token_ids[-1] if stopped else None,
            is_prefill=is_first,
            num_cached_prompt_tokens=self._num_cached() if is_first else 0,
            queue_seconds=scheduled - sequence.arrival if is_first else 0.0,
            fallback=fallback,
        )

    def verdict(self, token_ids: tuple[int, ...], num_drafted: int) -> SequenceStep:
        """Commit the answer to a proposal of ``num_drafted`` nodes and return it."""
        room = self.room
        reason = self._reason(token_ids, room)
        self.sequence.token_ids.extend(token_ids)
        self.sequence.has_emitted = True
        self.finished = reason is not None
        stopped = reason is FinishReason.STOP
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=token_ids,
            num_drafted=num_drafted,
            num_accepted=max(len(token_ids) - 1, 0),
            finish_reason=reason,
            matched_stop_token_id=token_ids[-1] if stopped else None,
        )

    def _accepted(self, base_len: int, num_tokens: int) -> tuple[int, int]:
        """Return drafted and accepted counts; the target can draw the token that pads chains."""
        accepted = max(num_tokens - 1, 0)
        placed_at, num_drafted = self._placed
        if placed_at != base_len:
            return accepted, accepted
        return num_drafted, min(accepted, num_drafted)

    def _reason(self, token_ids: Tokens[int], room: int) -> FinishReason | None:
        if self._ends_with_stop(token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(token_ids) >= room else None

    def _ends_with_stop(self, token_ids: Tokens[int]) -> bool:
        return bool(token_ids) and token_ids[-1] in self.sequence.request.limits.stop_token_ids

    def _swallowed_stop(self, completion: Completion, new: list[int]) -> list[int]:
        """A stop token that the package matched but left out of its output."""
        reason = completion.stop_reason
        if completion.finish_reason != "stop" or not isinstance(reason, int):
            return []
        return [] if new and new[-1] == reason else [reason]

    def _num_cached(self) -> int:
        return int(getattr(self.handle, "cached_tokens", 0) or 0)


def _reported(reason: str | None) -> FinishReason | None:
    return None if reason is None else _REASONS.get(reason, FinishReason.ERROR)
