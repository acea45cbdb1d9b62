"""What a draft service tells Prometheus, and the proposer that measures another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from draft_service.drafter import Draft, DraftJob
from draft_service.proposing import Proposer
from paceline.metrics import STEP_BUCKETS


@dataclass(frozen=True, slots=True)
class DraftState:
    """Where the figures are that the service keeps anyway."""

    num_sessions: Callable[[], int]
    num_evicted: Callable[[], int]
    num_streams: Callable[[], int]
    problems: Callable[[], Mapping[str, int]]
    """Malformed, unknown and refused items of streams that have ended, by kind."""
    ahead: Callable[[], Mapping[str, int]]
    """How far ahead of commits trees were; see ``SentTrees.counts``."""


class DraftMetrics:
    """Counters of one draft service; all carry the drafter's name."""

    def __init__(self, registry: CollectorRegistry, drafter: str, state: DraftState) -> None:
        self._drafter = drafter
        self._state = state
        self.propose_seconds = Histogram(
            "paceline_draft_propose_seconds",
            "Time to compute the proposals of one message, all its sessions together.",
            ("drafter",),
            buckets=STEP_BUCKETS,
            registry=registry,
        ).labels(drafter)
        self.proposals = Counter(
            "paceline_draft_proposals", "Trees computed.", ("drafter",), registry=registry
        ).labels(drafter)
        self.nodes = Counter(
            "paceline_draft_proposed_tokens",
            "Nodes of the trees computed.",
            ("drafter",),
            registry=registry,
        ).labels(drafter)
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yield the figures that the service keeps anyway."""
        labels, values, state = ("drafter",), (self._drafter,), self._state
        sessions = GaugeMetricFamily("paceline_draft_sessions", "Open sessions.", labels=labels)
        sessions.add_metric(values, state.num_sessions())
        streams = GaugeMetricFamily(
            "paceline_draft_streams", "Open streams of verifiers.", labels=labels
        )
        streams.add_metric(values, state.num_streams())
        evicted = CounterMetricFamily(
            "paceline_draft_evicted_sessions",
            "Sessions forgotten because they were idle or to make room.",
            labels=labels,
        )
        evicted.add_metric(values, state.num_evicted())
        problems = CounterMetricFamily(
            "paceline_draft_problems",
            "Items of verifiers' messages that could not be served, by kind.",
            labels=("drafter", "kind"),
        )
        for kind, number in sorted(state.problems().items()):
            problems.add_metric((self._drafter, kind), number)
        return (sessions, streams, evicted, problems, *self._collect_ahead())

    def _collect_ahead(self) -> Iterable[Metric]:
        counts = self._state.ahead()
        commits = CounterMetricFamily(
            "paceline_draft_ahead_commits",
            "Commits: hit when something of the newest tree was left behind them, else miss.",
            labels=("drafter", "outcome"),
        )
        for outcome in ("hit", "miss"):
            commits.add_metric((self._drafter, outcome), counts.get(outcome, 0))
        yield commits
        for key, name, text in (
            ("tokens_ahead", "tokens_ahead", "Depth of what was left behind commits, summed."),
            ("sent", "sent_tokens", "Nodes sent, none twice."),
            ("followed", "followed_tokens", "Nodes sent that commits went along."),
        ):
            family = CounterMetricFamily(f"paceline_draft_{name}", text, labels=("drafter",))
            family.add_metric((self._drafter,), counts.get(key, 0))
            yield family


class MeasuredProposer:
    """Another proposer, its work counted and timed."""

    def __init__(self, proposer: Proposer, metrics: DraftMetrics) -> None:
        self._proposer = proposer
        self._metrics = metrics

    async def propose(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job, in order."""
        started = time.perf_counter()
        drafts = await self._proposer.propose(jobs)
        self._metrics.propose_seconds.observe(time.perf_counter() - started)
        self._metrics.proposals.inc(len(drafts))
        self._metrics.nodes.inc(sum(draft.tree.num_nodes for draft in drafts))
        return drafts

    async def aclose(self) -> None:
        """End the proposer."""
        await self._proposer.aclose()
