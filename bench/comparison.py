"""Measures one prompt with drafting off and on, in turns, and says what was the same."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from bench.prompts import BenchPrompt
from paceline.async_client import AsyncClient
from paceline.events import Delta, Speculation, Summary
from paceline.generation_request import DraftingMode


@dataclass(frozen=True, slots=True)
class Run:
    """One answer and its times, as the client saw them."""

    text: str
    token_ids: tuple[int, ...]
    first_seconds: float
    """From the call to the first tokens."""
    decode_seconds: float
    """From the first tokens to the last ones."""
    num_decoded: int
    """Tokens after the first ones."""
    speculation: Speculation

    @property
    def tokens_per_second(self) -> float:
        """The decode rate; the prompt's own time is not in it."""
        return self.num_decoded / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def total_seconds(self) -> float:
        """From the call to the last tokens."""
        return self.first_seconds + self.decode_seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Drafting off and on for one prompt, as often each."""

    prompt: BenchPrompt
    plain: tuple[Run, ...]
    drafted: tuple[Run, ...]

    @property
    def tokens_per_second_plain(self) -> float:
        """The median decode rate without drafts."""
        return statistics.median(run.tokens_per_second for run in self.plain)

    @property
    def tokens_per_second_drafted(self) -> float:
        """The median decode rate with drafts."""
        return statistics.median(run.tokens_per_second for run in self.drafted)

    @property
    def speedup(self) -> float:
        """
        The median over neighbouring pairs of runs.

        Each pair runs within seconds, so that the other load of a machine weighs on both.
        """
        pairs = zip(self.plain, self.drafted, strict=True)
        return statistics.median(
            drafted.tokens_per_second / plain.tokens_per_second for plain, drafted in pairs
        )

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verification step with drafts."""
        return statistics.median(run.speculation.mean_acceptance_length for run in self.drafted)

    @property
    def identical_ids(self) -> bool:
        """Whether every run emitted the same token ids."""
        return len({run.token_ids for run in (*self.plain, *self.drafted)}) == 1


async def generate(
    client: AsyncClient,
    prompt: str,
    max_tokens: int,
    drafting: DraftingMode,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    pool: str | None = None,
) -> Run:
    """Generate once and return the answer with its times."""
    text, num_first = "", 0
    token_ids: list[int] = []
    speculation = Speculation()
    begun = time.perf_counter()
    first = last = begun
    async for event in client.stream(
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        drafting=drafting,
        pool=pool,
        return_token_ids=True,
        ignore_eos=True,
    ):
        if isinstance(event, Delta) and event.token_ids:
            last = time.perf_counter()
            if not token_ids:
                first, num_first = last, len(event.token_ids)
            token_ids.extend(event.token_ids)
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Summary):
            speculation = event.speculation
    return Run(
        text=text,
        token_ids=tuple(token_ids),
        first_seconds=first - begun,
        decode_seconds=last - first,
        num_decoded=len(token_ids) - num_first,
        speculation=speculation,
    )


async def compare(client: AsyncClient, prompt: BenchPrompt, repetitions: int) -> Comparison:
    """Measure a prompt with drafting off, on, off, on, ... after one short run of each."""
    await generate(client, prompt.text, 8, "off")
    await generate(client, prompt.text, 8, "on")
    plain: list[Run] = []
    drafted: list[Run] = []
    for _ in range(repetitions):
        plain.append(await generate(client, prompt.text, prompt.max_tokens, "off"))
        drafted.append(await generate(client, prompt.text, prompt.max_tokens, "on"))
    return Comparison(prompt, tuple(plain), tuple(drafted))
