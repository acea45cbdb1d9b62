"""What ``paceline doctor --policy`` asks a gateway's admin port: does it draft, and why not?"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

from paceline.cli.checks import Finding, Level, Report

TIMEOUT_SECONDS: Final = 5.0
MAX_BYTES: Final = 1_000_000

_MEASURED: Final = {
    "acceptance_length": "tokens per drafted step",
    "tokens_per_step": "tokens per step",
    "gain": "x plain",
}
"""What is measured of a pool, by its key in the report."""


async def examine_policy(address: str) -> Report:
    """Yield a line per verifier and pool, and one per kind of count."""
    subject = f"policy {address}"
    try:
        report = await asyncio.to_thread(_fetched, address)
    except (OSError, ValueError) as error:
        fix = "name the gateway's --admin-listen address"
        yield Finding(Level.WRONG, subject, f"no policy report: {error}", fix)
        return
    except http.client.HTTPException:
        fix = "name the gateway's --admin-listen address, not its --listen address"
        yield Finding(Level.WRONG, subject, "what listens there does not speak HTTP", fix)
        return
    for finding in _findings(subject, report):
        yield finding


def _fetched(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/policy", timeout=TIMEOUT_SECONDS) as answer:
        report = json.loads(answer.read(MAX_BYTES))
    if not isinstance(report, dict):
        raise ValueError("not a gateway's")
    return report


def _findings(subject: str, report: dict[str, Any]) -> Iterator[Finding]:
    pools = report.get("pools", [])
    if not pools:
        yield Finding(Level.WARNING, subject, "nothing was decided yet: no pool was seen in use")
    for pool in pools:
        what = f"{pool['verifier']} pool {pool['pool']}"
        decision = "drafts" if pool["drafts"] else f"does not draft: {pool['cause']}"
        yield Finding(Level.FINE, subject, f"{what} {decision}")
    yield from (_workload(subject, workload) for workload in report.get("workloads", []))
    for kind in ("draft_fallbacks", "probes", "pool_choices", "failovers"):
        counts = report.get(kind) or {}
        if counts:
            listed = ", ".join(f"{label} {count}" for label, count in counts.items())
            yield Finding(Level.FINE, subject, f"{kind.replace('_', ' ')} so far: {listed}")


def _workload(subject: str, seen: dict[str, Any]) -> Finding:
    use = "in use" if seen["is_chosen"] else "not in use"
    told = [f"{seen['verifier']} workload {seen['workload'] or 'any'} pool {seen['pool']}: {use}"]
    told += [
        f"{seen[key]:.2f} {words}"
        for key, words in _MEASURED.items()
        if isinstance(seen[key], int | float)
    ]
    if not seen["drafts"]:
        told.append(f"does not draft: {seen['cause']}")
    return Finding(Level.FINE, subject, ", ".join(told))
