"""What the drafting policy decides now and has decided so far, for people. The admin port's."""

from __future__ import annotations

import json

from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.generation import DraftFallback


def policy_report(controller: DraftingController, counters: Counters) -> bytes:
    """Return, as JSON, each verifier's pools with whether and why, and the counts of causes."""
    pools = [
        {
            "verifier": address,
            "pool": pool,
            "drafts": gate.is_open,
            "cause": "" if gate.cause is DraftFallback.UNSPECIFIED else gate.cause.name.lower(),
        }
        for (address, pool), gate in sorted(controller.gates().items())
    ]
    counts = counters.snapshot()
    report = {
        "pools": pools,
        "draft_fallbacks": _by_label(counts.get("draft_fallbacks", {})),
        "probes": _by_label(counts.get("probes", {})),
        "failovers": _by_label(counts.get("failovers", {})),
    }
    return json.dumps(report, indent=2).encode() + b"\n"


def _by_label(counts: object) -> dict[str, int]:
    if not isinstance(counts, dict):
        return {}
    return {" ".join(labels): count for labels, count in sorted(counts.items())}
