"""What a gateway tells Prometheus: figures of ended requests, and a view of what it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.generator import Generator
from gateway.relay import RequestFigures
from gateway.reloading import SourceKind
from paceline.metrics import FIRST_TOKEN_BUCKETS, REQUEST_BUCKETS, TOKEN_GAP_BUCKETS

ACCEPTANCE_BUCKETS: Final = (
    1.0,
    1.1,
    1.3,
    1.5,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    12.0,
    16.0,
    32.0,
)

_COUNTED: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "requests": ("paceline_requests", "Ended calls.", ("rpc", "code")),
    "draft_fallbacks": (
        "paceline_request_draft_fallback",
        "Outputs that ran without drafts for a while, by cause.",
        ("reason",),
    ),
    "failovers": (
        "paceline_failovers",
        "Outputs that went on at another verifier, by reason.",
        ("reason",),
    ),
    "failovers_refused": (
        "paceline_failovers_refused",
        "Outputs that could not go on because too many moved already, by reason.",
        ("reason",),
    ),
    "verifier_links_lost": (
        "paceline_verifier_links_lost",
        "Streams to verifiers that ended unasked.",
        ("verifier",),
    ),
    "verifiers_refused": (
        "paceline_verifiers_refused",
        "Verifiers refused as unfit, by reason.",
        ("verifier", "reason"),
    ),
    "probes": (
        "paceline_draft_probes",
        "Requests that drafted from a pool only to find out what it is worth.",
        ("draft",),
    ),
    "pool_choices": (
        "paceline_draft_pool_choices",
        "Outputs that began to draft from a pool, by why it was that one.",
        ("draft", "reason"),
    ),
}
"""Counts by their name in ``Counters``: metric, help, labels."""


class GatewayMetrics:
    """Histograms of ended requests, and everything else as it is when Prometheus asks."""

    def __init__(
        self, registry: CollectorRegistry, generator: Generator, refused: Mapping[str, str]
    ) -> None:
        """``refused`` holds what is wrong with files whose latest state is not in force."""
        self._generator = generator
        self._refused = refused
        self._tokens = {
            "prompt": Counter(
                "paceline_gateway_prompt_tokens",
                "Prompt tokens of ended requests.",
                registry=registry,
            ),
            "generation": Counter(
                "paceline_gateway_generation_tokens",
                "Emitted tokens of ended requests.",
                registry=registry,
            ),
        }
        self._seconds = _latencies(registry)
        self._acceptance = Histogram(
            "paceline_request_acceptance_length_tokens",
            "Tokens per verification step of a request that drafted: 1 + accepted / steps.",
            ("draft",),
            buckets=ACCEPTANCE_BUCKETS,
            registry=registry,
        )
        registry.register(self)

    def request_ended(self, figures: RequestFigures, num_tokens: int) -> None:
        """Take note of what a request took, however it ended, and of the tokens of its own."""
        self._tokens["prompt"].inc(figures.prompt_tokens)
        self._tokens["generation"].inc(num_tokens)
        self._seconds["queue"].observe(max(figures.queue_seconds, 0.0))
        self._seconds["total"].observe(figures.total_seconds)
        if num_tokens:
            self._seconds["first"].observe(figures.time_to_first_token_seconds)
        if num_tokens > 1:
            decoding = figures.total_seconds - figures.time_to_first_token_seconds
            self._seconds["token"].observe(max(decoding, 0.0) / (num_tokens - 1))
        speculation = figures.speculation
        if speculation.pool and speculation.num_spec_steps:
            length = speculation.mean_acceptance_length
            self._acceptance.labels(speculation.pool).observe(length)

    def collect(self) -> Iterable[Metric]:
        """Yield what the gateway keeps anyway."""
        yield from self._counts()
        admission = self._generator.admission
        yield GaugeMetricFamily(
            "paceline_gateway_requests_running",
            "Sequences that run through this gateway.",
            admission.num_running,
        )
        yield GaugeMetricFamily(
            "paceline_gateway_requests_waiting",
            "Requests that wait here for room.",
            admission.num_waiting,
        )
        refused = GaugeMetricFamily(
            "paceline_gateway_files_refused",
            "1 while the latest state of a file is refused and the former one in force, else 0.",
            labels=("source",),
        )
        for kind in SourceKind:
            refused.add_metric((kind,), int(kind in self._refused))
        yield refused
        up = GaugeMetricFamily(
            "paceline_verifier_up",
            "1 while the verifier takes new sequences, else 0.",
            labels=("verifier",),
        )
        for link in self._generator.verifiers.links:
            up.add_metric((link.address,), float(link.is_usable))
        yield up
        is_open = GaugeMetricFamily(
            "paceline_drafting_gate_open",
            "1 while requests in mode auto draft from the pool at the verifier, else 0.",
            labels=("verifier", "draft"),
        )
        for (verifier, pool), gate in self._generator.controller.gates().items():
            is_open.add_metric((verifier, pool), float(gate.is_open))
        yield is_open
        weights = GaugeMetricFamily(
            "paceline_draft_weight", "Weight of the pool in the routing file.", labels=("draft",)
        )
        for pool, weight in self._generator.controller.routing.weights.items():
            weights.add_metric((pool,), weight)
        yield weights

    def _counts(self) -> Iterable[Metric]:
        counts = self._generator.counters.snapshot()
        for key, (name, text, labels) in _COUNTED.items():
            family = CounterMetricFamily(name, text, labels=labels)
            for values, number in counts.get(key, {}).items():
                family.add_metric(values, number)
            yield family


def _latencies(registry: CollectorRegistry) -> dict[str, Histogram]:
    described = {
        "first": (
            "paceline_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            FIRST_TOKEN_BUCKETS,
        ),
        "token": (
            "paceline_time_per_output_token_seconds",
            "Time per token after the first, of one request.",
            TOKEN_GAP_BUCKETS,
        ),
        "total": (
            "paceline_e2e_request_latency_seconds",
            "From a request's arrival to its end.",
            REQUEST_BUCKETS,
        ),
        "queue": (
            "paceline_request_queue_time_seconds",
            "Time that a request waited at gateway and verifier.",
            FIRST_TOKEN_BUCKETS,
        ),
    }
    return {
        key: Histogram(name, text, buckets=buckets, registry=registry)
        for key, (name, text, buckets) in described.items()
    }
