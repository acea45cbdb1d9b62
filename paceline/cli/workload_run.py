"""Sends a workload to a gateway at some concurrency and measures what comes back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paceline.async_client import AsyncClient
from paceline.cli.outlook import Outlook
from paceline.cli.prompts import NamedPrompt
from paceline.errors import PacelineError
from paceline.events import Delta, Summary
from paceline.generation_request import DraftingMode, GenerationOptions


@dataclass(frozen=True, slots=True)
class Answered:
    """One request's figures, as its client saw them."""

    num_tokens: int
    first_seconds: float
    total_seconds: float
    summary: Summary

    @property
    def seconds_per_token(self) -> float:
        """Time per token after the first ones."""
        return (self.total_seconds - self.first_seconds) / max(self.num_tokens - 1, 1)


@dataclass(slots=True)
class Run:
    """What a number of streams did with one workload."""

    num_streams: int
    drafting: DraftingMode
    seconds: float = 0.0
    answers: list[Answered] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    """Failed requests by cause."""

    @property
    def tokens_per_second(self) -> float:
        """Goodput of all streams."""
        return sum(answer.num_tokens for answer in self.answers) / max(self.seconds, 1e-9)

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification step; 0 without steps."""
        records = [answer.summary.speculation for answer in self.answers]
        steps = sum(record.num_spec_steps for record in records)
        accepted = sum(record.num_accepted_draft_tokens for record in records)
        return 1 + accepted / steps if steps else 0.0

    @property
    def fallbacks(self) -> Counter[str]:
        """Requests that ran without drafts for a while, by cause."""
        return Counter(
            cause for answer in self.answers for cause in answer.summary.speculation.fallbacks
        )

    def percentile(self, share: float, figure: str) -> float:
        """Return the nearest-rank percentile of a figure of the answers; 0 without any."""
        values = sorted(float(getattr(answer, figure)) for answer in self.answers)
        return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked, how often, and how."""

    prompts: Sequence[NamedPrompt]
    num_requests: int
    options: GenerationOptions
    """Common to all requests."""
    seed: int
    timeout_seconds: float

    def requests(self) -> Iterator[tuple[int, NamedPrompt]]:
        """Yield the requests, each with a seed of its own."""
        for number in range(self.num_requests):
            yield self.seed + number, self.prompts[number % len(self.prompts)]


async def run_workload(
    client: AsyncClient, workload: Workload, num_streams: int, drafting: DraftingMode
) -> Run:
    """
    Keep a number of streams busy until every request is answered or has failed.

    Raises ``ConfigurationError`` as soon as the first ones have all failed alike.
    """
    run, waiting, outlook = Run(num_streams, drafting), workload.requests(), Outlook()
    begun = time.perf_counter()

    async def stream() -> None:
        for seed, prompt in waiting:
            try:
                run.answers.append(await _answered(client, workload, seed, prompt, drafting))
                outlook.note_answer()
            except PacelineError as error:
                run.failures[error.message] += 1
                outlook.note_failure(error)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(num_streams, workload.num_requests)):
                group.create_task(stream())
    except ExceptionGroup as stopped:
        raise stopped.exceptions[0] from None
    run.seconds = time.perf_counter() - begun
    return run


async def _answered(
    client: AsyncClient,
    workload: Workload,
    seed: int,
    prompt: NamedPrompt,
    drafting: DraftingMode,
) -> Answered:
    begun = time.perf_counter()
    first, num_tokens, summary = 0.0, 0, Summary()
    asked: GenerationOptions = {
        **workload.options,
        "seed": seed,
        "drafting": drafting,
        "workload": prompt.workload,
    }
    async for event in client.stream(prompt.text, timeout=workload.timeout_seconds, **asked):
        if isinstance(event, Delta) and event.completion_tokens > num_tokens:
            first = first or time.perf_counter() - begun
            num_tokens = event.completion_tokens
        elif isinstance(event, Summary):
            summary = event
    return Answered(num_tokens, first, time.perf_counter() - begun, summary)
