"""One output as it grows: ids, text, statistics, and where it ends. It talks to nobody."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import NamedTuple

from gateway.generation import FinishReason, Step, TokenLimits, TokenLogprobs
from gateway.speculation_record import SpeculationRecord
from gateway.text_assembler import Taken, TextAssembler


@dataclass(frozen=True, slots=True)
class Ending:
    """How an output ended."""

    reason: FinishReason
    matched_stop: str | int | None = None


class Piece(NamedTuple):
    """What an output gained since it was last looked at."""

    text: str
    token_ids: Sequence[int]
    logprobs: tuple[TokenLogprobs, ...]
    num_tokens: int
    """Emitted tokens in all, those from before a resume included."""


class Output:
    """
    Reads steps as they come, whether or not anybody takes the pieces.

    So a slow reader delays no stop string. What waits for it is bounded by ``max_tokens``: four
    bytes and the text of each token, and its log-probabilities when asked for.
    """

    def __init__(
        self,
        text: TextAssembler,
        limits: TokenLimits,
        statistics: SpeculationRecord,
        *,
        include_stop: bool,
    ) -> None:
        self.token_ids = array("I")
        """All emitted tokens, those from before a resume included."""
        self.statistics = statistics
        self.ending: Ending | None = None
        self._text = text
        self._limits = limits
        self._include_stop = include_stop
        self._num_taken = 0
        self._text_waiting = ""
        self._more_text: StringIO | None = None
        """What came after it, where a reader is slow: adding to a string copies all of it."""
        self._logprobs: list[TokenLogprobs] = []

    @property
    def num_waiting(self) -> int:
        """Tokens that nobody has taken yet."""
        return len(self.token_ids) - self._num_taken

    def prime(self, token_ids: Sequence[int], stop_token_ids: frozenset[int]) -> None:
        """Take in what was emitted before a resume; its text was shown already."""
        if not token_ids:
            return
        ends_at_stop = token_ids[-1] in stop_token_ids and len(token_ids) > self._limits.min_tokens
        step = Step(tuple(token_ids), is_prefill=True)
        if ends_at_stop:
            step = Step(
                step.token_ids,
                is_prefill=True,
                finish_reason=FinishReason.STOP,
                matched_stop_token_id=token_ids[-1],
            )
        elif len(token_ids) >= self._limits.max_tokens:
            step = Step(step.token_ids, is_prefill=True, finish_reason=FinishReason.LENGTH)
        self.add(step)
        self.take()

    def add(self, step: Step) -> None:
        """Take in one step; after the end, nothing."""
        if self.ending is not None:
            return
        token_ids = step.token_ids[: self._limits.max_tokens - len(self.token_ids)]
        has_stop = step.matched_stop_token_id is not None
        text, num_read, matched = self._text.push(
            self._shown(step, token_ids) if has_stop else token_ids
        )
        self._keep(step, token_ids if matched is None else token_ids[:num_read], text)
        if matched is not None:
            self.ending = Ending(FinishReason.STOP, matched)
        elif step.finish_reason:
            self._end(Ending(step.finish_reason, step.matched_stop_token_id))
        elif len(self.token_ids) >= self._limits.max_tokens:
            self._end(Ending(FinishReason.LENGTH))

    def take(self) -> Piece:
        """Return and forget what was gained."""
        num_tokens = len(self.token_ids)
        token_ids = self.token_ids[self._num_taken :]
        self._num_taken = num_tokens
        text, self._text_waiting = self._text_waiting, ""
        if self._more_text is not None:
            text, self._more_text = text + self._more_text.getvalue(), None
        logprobs: tuple[TokenLogprobs, ...] = ()
        if self._logprobs:
            logprobs = tuple(self._logprobs)
            self._logprobs.clear()
        return Piece(text, token_ids, logprobs, num_tokens)

    def _shown(self, step: Step, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens with text: the stop token has none, unless asked for."""
        is_whole = len(token_ids) == len(step.token_ids)
        return token_ids[:-1] if is_whole and not self._include_stop else token_ids

    def _keep(self, step: Step, token_ids: tuple[int, ...], text: str) -> None:
        self.token_ids.extend(token_ids)
        if step.logprobs:
            self._logprobs.extend(step.logprobs[: len(token_ids)])
        self._keep_text(text)
        if step.token_ids:
            self.statistics.add(step, len(token_ids))

    def _keep_text(self, text: str) -> None:
        if not self._text_waiting:
            self._text_waiting = text
        else:
            self._more_text = self._more_text or StringIO()
            self._more_text.write(text)

    def _end(self, ending: Ending) -> None:
        rest: Taken = self._text.flush()
        self._keep_text(rest.text)
        self.ending = ending if rest.matched is None else Ending(FinishReason.STOP, rest.matched)
