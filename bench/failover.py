"""
What the death of a verifier or of a draft service costs running streams, by SIGKILL on processes.

    python -m bench.failover
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.bar import Bar
from bench.kill_line import PROMPT, KillLine, Stream, kill, kill_line, restarted, running_streams
from bench.step_watch import StepWatch, watching_steps
from paceline.async_client import AsyncClient
from paceline.cli.service_process import ServiceProcess
from paceline.cli.terminal import say

NUM_STREAMS: Final = 16
NUM_KILLS: Final = 20
WATCHED_SECONDS: Final = 4.0
"""Before and after a kill; then things are started again, which takes the CPUs away."""
DRAFT_WATCHED_SECONDS: Final = 1.5
"""No pause is promised for a draft service's death."""
RANDOM_PAUSE_SECONDS: Final = (0.5, 2.0)


@dataclass(slots=True)
class Damage:
    """What some kills did."""

    num_requests: int = 0
    failures: list[str] = field(default_factory=list)
    num_changed: int = 0
    added_seconds: list[float] = field(default_factory=list)
    """Per kill and stream: its longest pause after the kill less its longest before."""
    lost_steps: list[float] = field(default_factory=list)
    """Per kill: mean steps of a sequence from the pool's return to its first verified draft."""

    def sum_up(self, streams: Sequence[Stream]) -> None:
        """Take the streams' counts so far."""
        self.num_requests = sum(stream.num_requests for stream in streams)
        self.num_changed = sum(stream.num_changed for stream in streams)
        self.failures = [failure for stream in streams for failure in stream.failures]

    @property
    def told(self) -> str:
        """All of it in words."""
        worst = max(self.added_seconds, default=0.0)
        lost = f", lost steps {max(self.lost_steps):.2f}" if self.lost_steps else ""
        return (
            f"{self.num_requests} requests, {len(self.failures)} failed, {self.num_changed} with "
            f"changed ids; added p99 {self.added_p99:.2f} s, worst {worst:.2f} s{lost}"
        )

    @property
    def added_p99(self) -> float:
        """The 99th percentile of the added latency, in seconds."""
        ordered = sorted(self.added_seconds)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0


async def kill_verifiers(
    num_kills: int,
    num_streams: int = NUM_STREAMS,
    *,
    watched_seconds: float = WATCHED_SECONDS,
) -> Damage:
    """Kill one of two verifiers, at random moments, again and again."""
    async with (
        kill_line(num_verifiers=2) as line,
        AsyncClient(line.gateway.spec.address) as client,
    ):

        async def mend(victim: ServiceProcess) -> None:
            await restarted(victim)
            await line.until_whole(client)

        await line.until_whole(client)
        async with running_streams(client, num_streams) as streams:
            kills = Kills(num_kills, watched_seconds, line.verifiers, mend)
            damage = await kills.damage_to(streams, random.Random(3))
        damage.sum_up(streams)
    return damage


async def kill_draft_service(
    num_kills: int,
    num_streams: int = NUM_STREAMS,
    *,
    watched_seconds: float = DRAFT_WATCHED_SECONDS,
) -> Damage:
    """Kill the draft service at random moments; it is started again each time."""
    lost_steps: list[float] = []
    async with (
        kill_line(num_verifiers=1) as line,
        AsyncClient(line.gateway.spec.address) as client,
    ):
        await line.until_whole(client)
        prompt = (await client.tokenize(PROMPT)).token_ids
        async with (
            running_streams(client, num_streams) as streams,
            watching_steps(line.verifiers[0].spec.address, prompt) as watch,
        ):

            async def mend(_: ServiceProcess) -> None:
                lost_steps.append(await _steps_lost_on_return(line, client, watch))
                say(f"lost steps {lost_steps[-1]:.2f}")

            kills = Kills(num_kills, watched_seconds, [line.draft], mend)
            damage = await kills.damage_to(streams, random.Random(4))
        damage.sum_up(streams)
    damage.lost_steps = lost_steps
    return damage


@dataclass(frozen=True, slots=True)
class Kills:
    """Kills of one of some processes, each watched and then mended."""

    num_kills: int
    watched_seconds: float
    """Before each kill and after it."""
    victims: Sequence[ServiceProcess]
    mend: Callable[[ServiceProcess], Awaitable[None]]
    """Brings back what was killed."""

    async def damage_to(self, streams: Sequence[Stream], dice: random.Random) -> Damage:
        """Kill at random moments and return what that did to running streams."""
        damage, watched = Damage(), self.watched_seconds
        for number in range(1, self.num_kills + 1):
            await asyncio.sleep(watched + dice.uniform(*RANDOM_PAUSE_SECONDS))
            victim = dice.choice(self.victims)
            at = await kill(victim)
            await asyncio.sleep(watched)
            _note_pauses(damage, streams, at, watched)
            await self.mend(victim)
            damage.sum_up(streams)
            say(f"kill {number}, of {victim.spec.name}; so far {damage.told}")
        return damage


async def _steps_lost_on_return(line: KillLine, client: AsyncClient, watch: StepWatch) -> float:
    await watch.until_unreachable()
    await restarted(line.draft)
    await line.until_whole(client)
    return await watch.lost_steps()


def _note_pauses(damage: Damage, streams: Sequence[Stream], at: float, seconds: float) -> None:
    for stream in streams:
        usual = stream.longest_pause(at - seconds, at - 0.01)
        after = stream.longest_pause(at, at + seconds)
        damage.added_seconds.append(max(0.0, after - usual))


async def measure() -> list[Bar]:
    """Return the promises about deaths."""
    verifiers = await kill_verifiers(NUM_KILLS)
    say(f"{NUM_KILLS} kills of a verifier: {verifiers.told}")
    drafts = await kill_draft_service(NUM_KILLS)
    say(f"{NUM_KILLS} kills of a draft service: {drafts.told}")
    for failure in (*verifiers.failures, *drafts.failures)[:5]:
        say(f"failed: {failure}")
    told = f"{NUM_KILLS} kills of"
    return [
        Bar(5, f"{told} a verifier: failed requests", len(verifiers.failures), 0, "at most"),
        Bar(5, f"{told} a verifier: changed ids", verifiers.num_changed, 0, "at most"),
        Bar(5, f"{told} a verifier: added latency p99, s", verifiers.added_p99, 1.5, "at most"),
        Bar(5, f"{told} a draft service: failed requests", len(drafts.failures), 0, "at most"),
        Bar(5, f"{told} a draft service: changed ids", drafts.num_changed, 0, "at most"),
        Bar(5, f"{told} a draft service: lost steps", max(drafts.lost_steps), 2, "at most"),
    ]


def main() -> None:
    """Print the figures."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.3f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
