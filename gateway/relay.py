"""One request's life, from its start on a verifier to its summary. Text and policy are others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from gateway.admission import Room
from gateway.counters import Counters
from gateway.failover_budget import FailoverBudget
from gateway.generation import FinishReason, Sampling, StatisticsLevel, TokenLogprobs
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


@dataclass(frozen=True, slots=True)
class Delta:
    """What an output gained."""

    index: int
    text: str
    token_ids: tuple[int, ...]
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
    session_id: str
    sampling: Sampling
    prompt_tokens: int
    statistics: StatisticsLevel
    return_token_ids: bool
    min_tokens_per_delta: int
    arrived: float
    """On the event loop's clock, as is the deadline."""
    deadline: float
    admission_seconds: float


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
        self._changed = asyncio.Event()
        self._first_token_at: float | None = None
        self._is_expired = False
        self._deadline_timer = self._loop.call_at(options.deadline, self._expire)
        for output in outputs:
            output.on_change = self._on_change

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the request's events; raises the error that ended it."""
        options = self.options
        self._start()
        yield Started(options.request_id, options.model, options.sampling, options.prompt_tokens)
        open_outputs = list(self._outputs)
        while open_outputs:
            for output in tuple(open_outputs):
                for event in self._news(output):
                    yield event
                    if isinstance(event, Finished):
                        open_outputs.remove(output)
            if any(output.has_failed for output in open_outputs):
                await self._recover(open_outputs)
            if open_outputs:
                await self._changed.wait()
                self._changed.clear()
        yield Summary(self.figures())

    def close(self) -> None:
        """End what still runs and give the room back."""
        self._deadline_timer.cancel()
        for output in self._outputs:
            output.stop()
        self._room.release()

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

    def _start(self) -> None:
        for output in self._outputs:
            if not output.is_finished:
                output.place(self._verifiers.choose(self.options.model, self.options.session_id))
        self._release_if_idle()

    def _news(self, output: OutputRelay) -> list[Event]:
        """Return what is new; at one moment, for steps come while events are being sent."""
        self._raise_if_expired()
        news: list[Event] = []
        ending = output.ending
        if ending is not None or output.num_waiting >= self.options.min_tokens_per_delta:
            piece = output.take()
            if piece.num_tokens or piece.text:
                token_ids = piece.token_ids if self.options.return_token_ids else ()
                news.append(
                    Delta(output.index, piece.text, token_ids, piece.logprobs, output.num_tokens)
                )
        if ending is not None:
            news.append(Finished(output.index, ending.reason, ending.matched_stop))
        return news

    async def _recover(self, outputs: Sequence[OutputRelay]) -> None:
        """Resume on another verifier what lost its own; raise what cannot be resumed."""
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
        patience = min(self._failover.wait_seconds, options.deadline - self._loop.time())
        link = await self._verifiers.choose_within(
            patience, options.model, options.session_id, avoid=output.refused_by
        )
        self._raise_if_expired()
        if link is None:
            raise error
        return link

    def _raise_if_expired(self) -> None:
        if self._is_expired and not all(output.is_finished for output in self._outputs):
            raise DeadlineExceeded(
                "the deadline passed; what was sent is valid: allow more time or fewer tokens"
            )

    def _on_change(self) -> None:
        if self._first_token_at is None and any(output.num_new for output in self._outputs):
            self._first_token_at = self._loop.time()
        self._release_if_idle()
        self._changed.set()

    def _release_if_idle(self) -> None:
        for output in self._outputs:
            if output.ending is None:
                return
        self._room.release()

    def _expire(self) -> None:
        self._is_expired = True
        for output in self._outputs:
            output.stop()
        self._room.release()
        self._changed.set()
