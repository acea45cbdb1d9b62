"""What the drafting policy decides now and has decided so far, for people. The admin port's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from gateway.counters import Counters
from gateway.drafting_controller import DraftingController, PolicyView
from gateway.workload_pools import WorkloadReport, closed_cause


def policy_report(
    controller: DraftingController,
    verifiers: Iterable[PolicyView],
    counters: Counters,
    refused_files: Mapping[str, str],
) -> bytes:
    """
    Return, as JSON, each verifier's and workload's pools, and the counts of causes.

    ``refused_files``: by kind of file, what is wrong with its latest state, which is not in force.
    """
    counts = counters.snapshot()
    report = {
        "limits": _limits(controller),
        "default": _default(controller),
        "refused_files": dict(refused_files),
        "pools": _pools(controller, verifiers),
        "workloads": [_workload(each) for each in controller.workloads.reports()],
        "draft_fallbacks": _by_label(counts.get("draft_fallbacks", {})),
        "probes": _by_label(counts.get("probes", {})),
        "pool_choices": _by_label(counts.get("pool_choices", {})),
        "failovers": _by_label(counts.get("failovers", {})),
    }
    return json.dumps(report, indent=2).encode() + b"\n"


def _limits(controller: DraftingController) -> dict[str, object]:
    limits = controller.limits
    return {
        "max_running_to_draft": limits.max_running_to_draft,
        "max_running_to_resume": limits.max_running_to_resume,
        "min_acceptance_length": limits.min_acceptance_length,
    }


def _default(controller: DraftingController) -> dict[str, object]:
    """Return what decides for requests that name no pool, the first that is set."""
    routing = controller.routing
    return {
        "routing_default_pool": routing.default_pool,
        "routing_weights": {name: share for name, share in routing.weights.items() if share},
        "default_pool": controller.default_pool,
    }


def _pools(
    controller: DraftingController, verifiers: Iterable[PolicyView]
) -> list[dict[str, object]]:
    views = {view.address: view for view in verifiers}
    told: list[dict[str, object]] = []
    for (address, name), gate in sorted(controller.gates().items()):
        view = views.get(address)
        pool = view.info.pool(name) if view is not None and view.info is not None else None
        told.append(
            {
                "verifier": address,
                "pool": name,
                "drafts": gate.is_open,
                "cause": closed_cause(gate),
                "is_available": pool is not None and pool.available,
                "unavailable_cause": pool.cause.name.lower() if pool and pool.cause else "",
                "num_running": view.load.num_running if view is not None else 0,
                "estimated_gain": view.load.estimated_gain if view is not None else 1.0,
            }
        )
    return told


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
