"""What the drafting policy decides now and has decided so far, for people. The admin port's."""

from __future__ import annotations

import json

from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.workload_pools import WorkloadReport, closed_cause


def policy_report(controller: DraftingController, counters: Counters) -> bytes:
    """Return, as JSON, each verifier's and workload's pools, and the counts of causes."""
    pools = [
        {
            "verifier": address,
            "pool": pool,
            "drafts": gate.is_open,
            "cause": closed_cause(gate),
        }
        for (address, pool), gate in sorted(controller.gates().items())
    ]
    counts = counters.snapshot()
    report = {
        "pools": pools,
        "workloads": [_workload(each) for each in controller.workloads.reports()],
        "draft_fallbacks": _by_label(counts.get("draft_fallbacks", {})),
        "probes": _by_label(counts.get("probes", {})),
        "pool_choices": _by_label(counts.get("pool_choices", {})),
        "failovers": _by_label(counts.get("failovers", {})),
    }
    return json.dumps(report, indent=2).encode() + b"\n"


def _workload(report: WorkloadReport) -> dict[str, object]:
    return {
        "verifier": report.verifier,
        "workload": report.workload,
        "pool": report.pool,
        "is_chosen": report.is_chosen,
        "drafts": report.gate.is_open,
        "cause": closed_cause(report.gate),
        "acceptance_length": report.acceptance_length,
        "tokens_per_step": report.tokens_per_step,
        "gain": report.gain,
    }


def _by_label(counts: object) -> dict[str, int]:
    if not isinstance(counts, dict):
        return {}
    return {" ".join(labels): count for labels, count in sorted(counts.items())}
