"""What load tools read from a scrape: exact names, and no series that only look like them."""

from __future__ import annotations

from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline.metrics import service_registry


def test_a_scrape_has_no_creation_times_that_a_prefix_would_take_for_figures() -> None:
    """B092: a huge number comes of adding up ``_created`` beside ``_sum``."""
    registry = service_registry("test")
    Counter("paceline_things", "Things.", registry=registry).inc(3)
    Histogram("paceline_waits_seconds", "Waits.", registry=registry).observe(0.5)

    scrape = generate_latest(registry).decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(scrape)
        for sample in family.samples
        if sample.name.startswith("paceline_") and not sample.labels
    }

    assert samples["paceline_things_total"] == 3
    assert samples["paceline_waits_seconds_sum"] == 0.5
    assert not [name for name in samples if name.endswith("_created")]
