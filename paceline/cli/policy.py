"""What ``paceline doctor --policy`` asks a gateway's admin port: does it draft, and why not?"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
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
    except urllib.error.HTTPError as error:
        told = f"what listens there has no policy report (HTTP {error.code})"
        yield Finding(Level.WRONG, subject, told, "name a gateway's --admin-listen address")
        return
    except (OSError, ValueError) as error:
        fix = "start the gateway with --admin-listen, or correct the address"
        yield Finding(Level.WRONG, subject, _unreported(error), fix)
        return
    except http.client.HTTPException:
        fix = "name the gateway's --admin-listen address, not its --listen address"
        yield Finding(Level.WRONG, subject, "what listens there does not speak HTTP", fix)
        return
    for finding in _findings(subject, report):
        yield finding


def _unreported(error: OSError | ValueError) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"nothing answers there within {TIMEOUT_SECONDS:g} s"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(cause, OSError):
        return f"it cannot be reached: {cause.strerror or cause}"
    return "what listens there answers with no policy report"


def _fetched(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/policy", timeout=TIMEOUT_SECONDS) as answer:
        report = json.loads(answer.read(MAX_BYTES))
    if not isinstance(report, dict):
        raise ValueError("not a gateway's")
    return report


def _findings(subject: str, report: dict[str, Any]) -> Iterator[Finding]:
    for source, problem in report.get("refused_files", {}).items():
        fix = "correct the file; until then its former state is in force"
        yield Finding(Level.WRONG, subject, f"{source}: {problem}", fix)
    pools, limits = report.get("pools", []), report.get("limits", {})
    if not pools:
        fix = "give the verifiers draft pools, or send a request first"
        told = "nothing was decided yet: no pool was seen in use"
        yield Finding(Level.WARNING, subject, told, fix)
    yield from (_pool(subject, pool, limits) for pool in pools)
    yield Finding(Level.FINE, subject, _default(report.get("default", {})))
    for workload in report.get("workloads", []):
        yield _workload(subject, workload, limits)
    for kind in ("draft_fallbacks", "probes", "pool_choices", "failovers"):
        counts = report.get(kind) or {}
        if counts:
            listed = ", ".join(f"{label} {count}" for label, count in counts.items())
            yield Finding(Level.FINE, subject, f"{kind.replace('_', ' ')} so far: {listed}")


def _pool(subject: str, pool: dict[str, Any], limits: dict[str, Any]) -> Finding:
    what = f"{pool['verifier']} pool {pool['pool']}"
    if not pool.get("is_available", True):
        cause = pool.get("unavailable_cause") or "unknown"
        fix = "see that its draft service runs, and what paceline doctor says of the pool"
        return Finding(Level.WRONG, subject, f"{what} cannot be used: {cause}", fix)
    if pool["drafts"]:
        return Finding(Level.FINE, subject, f"{what} may draft")
    return Finding(Level.FINE, subject, f"{what} does not draft: {_why(pool, limits)}")


def _why(seen: dict[str, Any], limits: dict[str, Any]) -> str:
    """Return why a gate is closed, with the figures that closed it as far as they are known."""
    cause = str(seen["cause"])
    if cause == "load":
        ceiling, resumed = limits.get("max_running_to_draft"), limits.get("max_running_to_resume")
        now = f"{seen['num_running']} run now, " if "num_running" in seen else ""
        return f"load ({now}max_running_to_draft is {ceiling}; it comes back at {resumed})"
    if cause == "no_gain":
        floor = limits.get("min_acceptance_length")
        return f"no_gain (slower than plain, or below min_acceptance_length, which is {floor})"
    return cause


def _default(default: dict[str, Any]) -> str:
    said = "requests that name no pool draft from"
    if pool := default.get("routing_default_pool"):
        return f"{said} {pool} (the routing file's default_pool)"
    if weights := default.get("routing_weights"):
        shares = ", ".join(f"{name} {weight}" for name, weight in weights.items())
        return f"{said} pools by the routing file's weights: {shares}"
    if pool := default.get("default_pool"):
        return f"{said} {pool} (the setting default_pool)"
    return f"{said} the pool that is best for their workload"


def _workload(subject: str, seen: dict[str, Any], limits: dict[str, Any]) -> Finding:
    use = "the best so far" if seen["is_chosen"] else "not the best"
    told = [f"{seen['verifier']} workload {seen['workload'] or 'any'} pool {seen['pool']}: {use}"]
    told += [
        f"{seen[key]:.2f} {words}"
        for key, words in _MEASURED.items()
        if isinstance(seen[key], int | float)
    ]
    if not seen["drafts"]:
        told.append(f"does not draft: {_why(seen, limits)}")
    return Finding(Level.FINE, subject, ", ".join(told))
