"""What a verifier tells Prometheus: read off each step's output and each draft link."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from paceline.metrics import COUNT_BUCKETS, STEP_BUCKETS, TOKEN_GAP_BUCKETS, LoopHistogram
from verify_service.draft_link import DraftLink
from verify_service.engine.draft_tally import DraftTally
from verify_service.engine.sampling import Fallback
from verify_service.engine.steps import (
    Command,
    SequenceStep,
    SessionClosed,
    SessionOpened,
    StepOutput,
    Submit,
)

MAX_POSITIONS: Final = 32
"""Positions told apart; deeper ones are not counted by position."""

_BY_DRAFT: Final = ("draft", "draft_version")


@runtime_checkable
class CalibratedEngine(Protocol):
    """An engine that knows how far drafters' estimates were off."""

    def calibration_errors(self) -> Mapping[str, float]:
        """Return how far each pool's estimated and seen acceptance are apart."""
        ...


@runtime_checkable
class TallyingEngine(Protocol):
    """An engine that counts what became of drafters' trees."""

    @property
    def draft_tally(self) -> DraftTally:
        """The counts so far."""
        ...


def draft_tally(engine: object) -> DraftTally | None:
    """Return an engine's counts of what became of trees; None: it keeps none."""
    return engine.draft_tally if isinstance(engine, TallyingEngine) else None


def calibration_reader(engine: object) -> Callable[[], Mapping[str, float]]:
    """Return how to read an engine's calibration errors; one that keeps none has none."""
    return engine.calibration_errors if isinstance(engine, CalibratedEngine) else dict


class VerifyMetrics:
    """
    Counters of one verifier. Lives on the event loop.

    Acceptance rate is accepted / draft tokens, mean acceptance length 1 + accepted / drafts, both
    by ``rate`` over counters; nothing here is an average.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        links: Mapping[str, DraftLink],
        calibration_errors: Callable[[], Mapping[str, float]],
        tally: DraftTally | None = None,
    ) -> None:
        self._links = links
        self._pool_of: dict[int, str] = {}
        self._last_step: dict[int, float] = {}
        self._load = _load_gauges(registry)
        self._tokens = _token_counters(registry)
        self._speculation = _speculation_counters(registry)
        self._fallbacks = Counter(
            "paceline_draft_fallback",
            "Steps of sequences that ran without drafts, by cause.",
            ("reason",),
            registry=registry,
        )
        self._seconds = Histogram(
            "paceline_verify_step_seconds",
            "Duration of one engine step, over all its sequences.",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self._gap = LoopHistogram(
            "paceline_inter_token_latency_seconds",
            "Time between two steps of a sequence, divided by the tokens of the second.",
            TOKEN_GAP_BUCKETS,
            registry,
        )
        self._rows = Histogram(
            "paceline_verify_rows",
            "Rows of one forward pass: committed tokens and draft nodes of all sequences.",
            buckets=COUNT_BUCKETS,
            registry=registry,
        )
        self._budget = Histogram(
            "paceline_draft_budget_nodes",
            "Draft nodes that one step verified, over all its sequences: the chosen budget.",
            buckets=COUNT_BUCKETS,
            registry=registry,
        )
        self._round_trip = Histogram(
            "paceline_draft_rpc_seconds",
            "Time from sending a commit to receiving the tree that starts right behind it.",
            ("draft",),
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        registry.register(_LinkCollector(links, calibration_errors))
        if tally is not None:
            registry.register(_TallyCollector(tally))

    def round_trip(self, pool: str, seconds: float) -> None:
        """Take note of one round trip to a pool."""
        self._round_trip.labels(pool).observe(seconds)

    def sent(self, command: Command) -> None:
        """Take note of a command that the engine took."""
        if isinstance(command, Submit):
            self._tokens["prompt"].inc(len(command.request.prompt_token_ids))

    def observe(self, output: StepOutput) -> None:
        """Take note of one step; called for every one."""
        load = output.load
        for name, value in (
            ("running", load.num_running),
            ("waiting", load.num_waiting),
            ("kv", load.kv_utilization),
            ("gain", load.estimated_gain),
        ):
            self._load[name].set(value)
        for event in output.session_events:
            if isinstance(event, SessionOpened):
                self._pool_of[event.request.sequence_id] = event.pool
        if output.steps:
            self._observe_steps(output)
        for event in output.session_events:
            if isinstance(event, SessionClosed):
                self._pool_of.pop(event.sequence_id, None)
        for failure in output.failures:
            self._last_step.pop(failure.sequence_id, None)

    def _observe_steps(self, output: StepOutput) -> None:
        if any(step.token_ids for step in output.steps):
            self._seconds.observe(output.load.step_seconds)
            self._rows.observe(output.load.num_rows)
            self._budget.observe(sum(step.num_drafted for step in output.steps))
        self._tokens["generation"].inc(sum(len(step.token_ids) for step in output.steps))
        self._tokens["cached"].inc(sum(step.num_cached_prompt_tokens for step in output.steps))
        self._observe_gaps(output.steps)
        by_pool: dict[str, list[SequenceStep]] = {}
        for step in output.steps:
            if step.fallback is not None:
                self._fallbacks.labels(step.fallback.name.lower()).inc()
            pool = self._pool_of.get(step.sequence_id)
            if pool is not None and step.token_ids and not step.is_prefill:
                by_pool.setdefault(pool, []).append(step)
        for pool, steps in by_pool.items():
            self._observe_drafting(pool, steps)

    def _observe_gaps(self, steps: Iterable[SequenceStep]) -> None:
        now = time.monotonic()
        for step in steps:
            before = self._last_step.get(step.sequence_id)
            if before is not None and step.token_ids:
                self._gap.observe((now - before) / len(step.token_ids))
            if step.finish_reason is None:
                self._last_step[step.sequence_id] = now
            else:
                self._last_step.pop(step.sequence_id, None)

    def _observe_drafting(self, pool: str, steps: list[SequenceStep]) -> None:
        """Count one step of all sequences that draft from a pool."""
        link = self._links.get(pool)
        labels, counts = (pool, link.status.version if link else ""), self._speculation
        accepted = [step.num_accepted for step in steps if step.num_drafted]
        num_drafted = sum(step.num_drafted for step in steps)
        counts["ahead"].labels(*labels, "hit").inc(len(accepted))
        counts["ahead"].labels(*labels, "miss").inc(len(steps) - len(accepted))
        if not accepted:
            return
        counts["drafts"].labels(*labels).inc(len(accepted))
        counts["drafted"].labels(*labels).inc(num_drafted)
        counts["accepted"].labels(*labels).inc(sum(accepted))
        counts["wasted"].labels(*labels).inc(max(num_drafted - sum(accepted), 0))
        for position in range(min(max(accepted), MAX_POSITIONS)):
            reached = sum(number > position for number in accepted)
            counts["positions"].labels(*labels, str(position)).inc(reached)


class _LinkCollector:
    """Reads the links' own counts when Prometheus asks."""

    def __init__(
        self,
        links: Mapping[str, DraftLink],
        calibration_errors: Callable[[], Mapping[str, float]],
    ) -> None:
        self._links = links
        self._calibration_errors = calibration_errors

    def collect(self) -> Iterable[Metric]:
        """Yield the state of each link."""
        up = GaugeMetricFamily(
            "paceline_draft_up",
            "1 while the pool can be used, else 0 and the cause.",
            labels=("draft", "version", "cause"),
        )
        trees = CounterMetricFamily(
            "paceline_draft_trees", "Valid trees received.", labels=("draft",)
        )
        stale = CounterMetricFamily(
            "paceline_draft_stale",
            "Trees that started before the newest commit; what still fits of them is used.",
            labels=("draft",),
        )
        invalid = CounterMetricFamily(
            "paceline_draft_invalid_trees", "Trees refused, by cause.", labels=("draft", "cause")
        )
        for pool, link in list(self._links.items()):
            status, counts = link.status, dict(link.counts)
            cause = _shown(status.cause)
            up.add_metric((pool, status.version, cause), float(status.cause is None))
            trees.add_metric((pool,), counts.get("trees", 0))
            stale.add_metric((pool,), counts.get("late_trees", 0))
            for name, number in counts.items():
                if name.startswith("invalid_"):
                    invalid.add_metric((pool, name.removeprefix("invalid_")), number)
        calibration = GaugeMetricFamily(
            "paceline_draft_calibration_error_ratio",
            "Gap between estimated and seen acceptance of nodes, averaged over estimates, recent.",
            labels=("draft",),
        )
        for pool, error in self._calibration_errors().items():
            calibration.add_metric((pool,), error)
        return (up, trees, stale, invalid, calibration)


class _TallyCollector:
    """Reads the engine's own counts when Prometheus asks."""

    def __init__(self, tally: DraftTally) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        """Yield what became of trees and nodes."""
        trees = CounterMetricFamily(
            "paceline_draft_tree_outcomes",
            "Valid trees by what became of them: merged, stale, ahead, ended or inbox_full.",
            labels=("draft", "outcome"),
        )
        for (pool, fate), number in self._tally.trees().items():
            trees.add_metric((pool, fate.name.lower()), number)
        nodes = CounterMetricFamily(
            "paceline_draft_nodes_without_kv",
            "Draft nodes worth a row that found no free KV block.",
            self._tally.num_nodes_without_blocks,
        )
        return (trees, nodes)


def _shown(cause: Fallback | None) -> str:
    return "" if cause is None else cause.name.lower()


def _load_gauges(registry: CollectorRegistry) -> dict[str, Gauge]:
    described = {
        "running": ("paceline_requests_running", "Sequences in the batch."),
        "waiting": ("paceline_requests_waiting", "Sequences that wait for room in the batch."),
        "kv": (
            "paceline_verifier_kv_cache_utilization_ratio",
            "Share of the KV blocks in use, 0 to 1.",
        ),
        "gain": (
            "paceline_drafting_gain_ratio",
            "Estimated tokens per second with drafts over those without, recent.",
        ),
    }
    return {key: Gauge(name, text, registry=registry) for key, (name, text) in described.items()}


def _token_counters(registry: CollectorRegistry) -> dict[str, Counter]:
    described = {
        "prompt": ("paceline_prompt_tokens", "Prompt tokens of started sequences."),
        "generation": ("paceline_generation_tokens", "Emitted tokens."),
        "cached": ("paceline_cached_prompt_tokens", "Prompt tokens found in the prefix cache."),
    }
    return {key: Counter(name, text, registry=registry) for key, (name, text) in described.items()}


def _speculation_counters(registry: CollectorRegistry) -> dict[str, Counter]:
    described: dict[str, tuple[str, str, tuple[str, ...]]] = {
        "drafts": ("num_drafts", "Steps of a sequence that verified at least one node.", ()),
        "drafted": ("num_draft_tokens", "Draft nodes verified.", ()),
        "accepted": ("num_accepted_tokens", "Draft tokens accepted.", ()),
        "positions": (
            "num_accepted_tokens_per_pos",
            "Draft tokens accepted, by depth in the tree from 0.",
            ("position",),
        ),
    }
    counters = {
        key: Counter(f"paceline_spec_decode_{name}", text, (*_BY_DRAFT, *extra), registry=registry)
        for key, (name, text, extra) in described.items()
    }
    counters["wasted"] = Counter(
        "paceline_draft_wasted_tokens",
        "Draft nodes verified in vain: rows of the forward pass that gave no token.",
        _BY_DRAFT,
        registry=registry,
    )
    counters["ahead"] = Counter(
        "paceline_draft_ahead_steps",
        "Steps of drafting sequences: hit when a tree was there as the step began, else miss.",
        (*_BY_DRAFT, "outcome"),
        registry=registry,
    )
    return counters
