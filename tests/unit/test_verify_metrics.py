"""What a verifier counts: its counters keep the identities that users compute rates from."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from paceline.metrics import LoopHistogram
from tests.doubles.small_engine import request
from verify_service.engine.sampling import Fallback, FinishReason
from verify_service.engine.steps import (
    Load,
    SequenceStep,
    SessionClosed,
    SessionOpened,
    StepOutput,
    Submit,
)
from verify_service.metrics import MAX_POSITIONS, VerifyMetrics, calibration_reader

LABELS = {"draft": "ngram", "draft_version": ""}


class Bench:
    """Metrics of a verifier without links."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = VerifyMetrics(self.registry, {}, lambda: {"ngram": 0.25})

    def value(self, name: str, **labels: str) -> float:
        """Return a sample; 0 where there is none yet."""
        return self.registry.get_sample_value(f"paceline_{name}", labels) or 0.0

    def open(self, *sequence_ids: int) -> None:
        """Open draft sessions."""
        events = tuple(SessionOpened("ngram", request(i), (1,), 0) for i in sequence_ids)
        self.metrics.observe(StepOutput(session_events=events))

    def step(self, *steps: SequenceStep, load: Load | None = None) -> None:
        """Run a step."""
        self.metrics.observe(StepOutput(steps, load=load or Load(1, 0, 0.5, 0.02, 8, 1.5)))


def drafted(sequence_id: int, num_drafted: int, num_accepted: int) -> SequenceStep:
    """Return a step that verified drafts."""
    return SequenceStep(sequence_id, (7,) * (num_accepted + 1), num_drafted, num_accepted)


@given(
    st.lists(
        st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1
    )
)
def test_counters_keep_their_identities(counts: Sequence[tuple[int, int]]) -> None:
    bench = Bench()
    bench.open(1)
    for num_drafted, num_accepted in counts:
        bench.step(drafted(1, num_drafted, num_accepted))

    spec = {
        name: bench.value(f"spec_decode_num_{name}_total", **LABELS)
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    }
    wasted = bench.value("draft_wasted_tokens_total", **LABELS)
    ahead = {
        outcome: bench.value("draft_ahead_steps_total", outcome=outcome, **LABELS)
        for outcome in ("hit", "miss")
    }
    positions = sum(
        bench.value("spec_decode_num_accepted_tokens_per_pos_total", position=str(i), **LABELS)
        for i in range(MAX_POSITIONS)
    )

    assert spec["draft_tokens"] == sum(number for number, _ in counts)
    assert spec["accepted_tokens"] + wasted == spec["draft_tokens"]
    assert spec["drafts"] == ahead["hit"] == sum(number > 0 for number, _ in counts)
    assert ahead["hit"] + ahead["miss"] == len(counts)
    assert positions == sum(min(number, MAX_POSITIONS) for _, number in counts)
    assert bench.value("generation_tokens_total") == sum(number + 1 for _, number in counts)


def test_steps_without_a_session_count_as_tokens_and_as_their_fallback() -> None:
    bench = Bench()
    bench.step(SequenceStep(1, (5,), fallback=Fallback.REQUESTED))

    assert bench.value("generation_tokens_total") == 1
    assert bench.value("draft_fallback_total", reason="requested") == 1
    assert bench.value("draft_ahead_steps_total", outcome="miss", **LABELS) == 0


def test_a_closed_session_is_counted_no_more() -> None:
    bench = Bench()
    bench.open(1)
    bench.metrics.observe(StepOutput(session_events=(SessionClosed("ngram", 1),)))
    bench.step(drafted(1, 4, 2))

    assert bench.value("spec_decode_num_drafts_total", **LABELS) == 0


def test_load_and_step_are_shown_as_they_are() -> None:
    bench = Bench()
    bench.step(SequenceStep(1, (5,)), load=Load(3, 2, 0.75, 0.03, 11, 1.25))

    assert bench.value("requests_running") == 3
    assert bench.value("requests_waiting") == 2
    assert bench.value("verifier_kv_cache_utilization_ratio") == 0.75
    assert bench.value("drafting_gain_ratio") == 1.25
    assert bench.value("verify_step_seconds_count") == 1
    assert bench.value("verify_rows_sum") == 11


def test_gaps_are_forgotten_when_a_sequence_ends() -> None:
    bench = Bench()
    for reason in (None, None, FinishReason.LENGTH, None):
        bench.step(SequenceStep(1, (5, 6), finish_reason=reason))

    assert bench.value("inter_token_latency_seconds_count") == 2


def test_prompt_tokens_are_counted_when_the_engine_takes_them() -> None:
    bench = Bench()
    bench.metrics.sent(Submit(request(1)))

    assert bench.value("prompt_tokens_total") == len(request(1).prompt_token_ids)


def test_calibration_errors_are_read_when_asked_for() -> None:
    assert Bench().value("draft_calibration_error_ratio", draft="ngram") == 0.25
    assert calibration_reader(object())() == {}


@given(st.lists(st.floats(0, 100)))
def test_the_loops_histogram_is_one_that_prometheus_knows(values: Sequence[float]) -> None:
    edges = (0.1, 1.0, 10.0)
    own, other = CollectorRegistry(), CollectorRegistry()
    fast = LoopHistogram("seconds", "Some.", edges, own)
    slow = Histogram("seconds", "Some.", buckets=edges, registry=other)
    for value in values:
        fast.observe(value)
        slow.observe(value)

    for edge in ("0.1", "1.0", "10.0", "+Inf"):
        assert own.get_sample_value("seconds_bucket", {"le": edge}) == other.get_sample_value(
            "seconds_bucket", {"le": edge}
        )
    assert own.get_sample_value("seconds_count") == len(values)
