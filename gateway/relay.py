"""One request's life, from its start on a verifier to its summary. Text and policy are others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.admission import Room
from gateway.affinity import Affinity
from gateway.counters import Counters
from gateway.doorbell import Doorbell
from gateway.failover_budget import FailoverBudget
from gateway.generation import Capabilities, FinishReason, Sampling, StatisticsLevel, TokenLogprobs
from gateway.output_relay import OutputRelay
from gateway.speculation_record import SpeculationRecord
from gateway.verifier_link import VerifierLink
from gateway.verifier_pool import VerifierPool
from paceline.errors import DeadlineExceeded, Overloaded, PacelineError, Unavailable


@dataclass(frozen=True, slots=True)
class Started:
    """The request runs."""

    request_id: str
    model: str
    sampling: Sampling
    prompt_tokens: int


class Delta(NamedTuple):
    """What an output gained; made for every message, so it is a tuple."""

    output_index: int
    text: str
    token_ids: Sequence[int]
    logprobs: tuple[TokenLogprobs, ...]
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """An output is complete."""

    index: int
    reason: FinishReason
    matched_stop: str | int | None


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What a request took, so far or in all."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens from before a resume included."""
    cached_prompt_tokens: int
    speculation: SpeculationRecord
    statistics: StatisticsLevel
    queue_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float
    num_failovers: int
    verifiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The last event."""

    figures: RequestFigures


Event = Started | Delta | Finished | Summary


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """What a relay must know of its request besides its outputs."""

    request_id: str
    model: str
    affinity: Affinity
    sampling: Sampling
    prompt_tokens: int
    statistics: StatisticsLevel
    return_token_ids: bool
    min_tokens_per_delta: int
    arrived: float
    """On the event loop's clock, as is the deadline."""
    deadline: float
    admission_seconds: float
    promised: Capabilities
    """What its options were checked against: a verifier that can do less is no choice."""


@dataclass(frozen=True, slots=True)
class FailoverLimits:
    """How hard a request tries to go on when its verifier is lost."""

    max_failovers: int = 3
    wait_seconds: float = 5.0
    """Longest wait for a verifier to be there."""
    burst: int = 512
    """Failovers of all requests that may happen at once."""
    per_second: float = 16.0
    """How fast the burst comes back."""


class Relay:
    """
    Runs the outputs of one request and tells what happens.

    The room is given back as soon as no output runs, not when the last event is taken. ``close``
    ends everything at once, as does the deadline.
    """

    def __init__(
        self,
        options: RelayOptions,
        outputs: Sequence[OutputRelay],
        *,
        verifiers: VerifierPool,
        room: Room,
        counters: Counters,
        failover: FailoverLimits,
        budget: FailoverBudget,
    ) -> None:
        self.options = options
        self._outputs = outputs
        self._verifiers = verifiers
        self._room = room
        self._counters = counters
        self._failover = failover
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._changed = Doorbell(self._loop)
        self._has_ends = False
        """Whether an output has ended, for better or worse, since that was last looked at."""
        self._first_token_at: float | None = None
        self._error: PacelineError | None = None
        """What ends the request, whatever its outputs do."""
        self._deadline_timer = self._loop.call_at(options.deadline, self.end, _deadline_passed())
        for output in outputs:
            output.observer = self

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the request's events; raises the error that ended it."""
        options = self.options
        self._start()
        yield Started(options.request_id, options.model, options.sampling, options.prompt_tokens)
        open_outputs = list(self._outputs)
        try:
            while open_outputs:
                for output in tuple(open_outputs):
                    # Looked at before anything is sent: steps come while events are on their way.
                    self._raise_if_ended()
                    if output.is_finished:
                        open_outputs.remove(output)
                    for event in self._news(output, options.min_tokens_per_delta):
                        yield event
                await self._recover(open_outputs)
                if open_outputs:
                    await self._changed.heard()
        except PacelineError:
            for event in self._gathered(open_outputs):
                yield event
            raise
        yield Summary(self.figures())

    def on_step(self) -> None:
        """Send what an output gained."""
        if self._first_token_at is None and any(output.num_new for output in self._outputs):
            self._first_token_at = self._loop.time()
        self._changed.ring()

    def on_end(self) -> None:
        """Send the end of an output, or have it go on elsewhere."""
        self._has_ends = True
        self._release_if_idle()
        self.on_step()

    def end(self, error: PacelineError) -> None:
        """End what still runs: the error comes after what was emitted. What is complete stays."""
        self._error = self._error or error
        self._stop()
        self._changed.ring()

    def close(self) -> None:
        """End what still runs and give the room back."""
        self._deadline_timer.cancel()
        self._stop()

    def figures(self) -> RequestFigures:
        """Return what the request took so far."""
        options, now = self.options, self._loop.time()
        level = options.statistics
        speculation = SpeculationRecord.at_level(with_steps=level is StatisticsLevel.STEPS)
        for output in self._outputs:
            speculation.merge(output.statistics)
        first = now if self._first_token_at is None else self._first_token_at
        return RequestFigures(
            prompt_tokens=options.prompt_tokens,
            completion_tokens=sum(output.num_tokens for output in self._outputs),
            cached_prompt_tokens=self._outputs[0].cached_prompt_tokens,
            speculation=speculation,
            statistics=level,
            queue_seconds=options.admission_seconds + self._outputs[0].queue_seconds,
            time_to_first_token_seconds=first - options.arrived,
            total_seconds=now - options.arrived,
            num_failovers=sum(output.num_failovers for output in self._outputs),
            verifiers=tuple({name: None for o in self._outputs for name in o.verifiers}),
        )

    def _stop(self) -> None:
        for output in self._outputs:
            output.stop()
        self._room.release()

    def _start(self) -> None:
        for output in self._outputs:
            if not output.is_finished:
                output.place(
                    self._verifiers.choose(
                        self.options.model,
                        self.options.affinity,
                        promised=self.options.promised,
                    )
                )
        self._release_if_idle()

    def _news(self, output: OutputRelay, min_tokens: int) -> Sequence[Event]:
        """Return what an output gained, if it is enough to be sent, and its end."""
        ending, piece = output.ending, output.take(min_tokens)
        events: list[Event] = []
        if piece is not None and (piece.token_ids or piece.text):
            token_ids = piece.token_ids if self.options.return_token_ids else ()
            events.append(
                Delta(output.index, piece.text, token_ids, piece.logprobs, piece.num_tokens)
            )
        if ending is not None:
            events.append(Finished(output.index, ending.reason, ending.matched_stop))
        return events

    def _gathered(self, outputs: Iterable[OutputRelay]) -> Sequence[Event]:
        """Return what was gathered for larger deltas, which an error has overtaken."""
        return [event for output in outputs for event in self._news(output, 0)]

    async def _recover(self, outputs: Sequence[OutputRelay]) -> None:
        """Resume on another verifier what lost its own; raise what cannot be resumed."""
        if not self._has_ends:
            return
        self._has_ends = False
        for output in outputs:
            if (error := output.take_failure()) is None:
                continue
            is_curable = isinstance(error, Unavailable | Overloaded)
            if not is_curable or output.num_failovers >= self._failover.max_failovers:
                raise error
            self._spend_budget(error)
            output.num_failovers += 1
            output.place(await self._other_verifier(output, error))
            self._counters.increment("failovers", error.reason)

    def _spend_budget(self, error: PacelineError) -> None:
        wait_seconds = self._budget.spend()
        if wait_seconds:
            self._counters.increment("failovers_refused", error.reason)
            raise Unavailable(
                f"{error.message}; too many requests are moving to other verifiers already",
                reason="FAILOVER_BUDGET",
                retry_after_seconds=wait_seconds,
            )

    async def _other_verifier(self, output: OutputRelay, error: PacelineError) -> VerifierLink:
        """Return a verifier that has not refused this output, waiting when there is none at all."""
        options = self.options
        seconds_left = options.deadline - self._loop.time()
        try:
            link = await self._verifiers.choose_within(
                min(self._failover.wait_seconds, seconds_left),
                options.model,
                options.affinity,
                avoid=output.refused_by,
                promised=options.promised,
            )
        except Unavailable:
            self._raise_if_ended()
            if seconds_left < self._failover.wait_seconds:
                raise _deadline_passed() from None
            raise
        self._raise_if_ended()
        if link is None:
            raise error
        return link

    def _raise_if_ended(self) -> None:
        if self._error is not None and not all(output.is_finished for output in self._outputs):
            raise self._error

    def _release_if_idle(self) -> None:
        for output in self._outputs:
            if output.ending is None:
                return
        self._room.release()


def _deadline_passed() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the deadline passed; what was sent is valid: allow more time or fewer tokens"
    )
