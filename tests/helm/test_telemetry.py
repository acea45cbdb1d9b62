"""Metrics, dashboard, alerts and their documentation agree; promtool has the last word."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import paceline
from tests.doubles.model_folders import write_model_folder
from tests.doubles.process_line import drafter, gateway, running, verifier
from tests.doubles.rendered_chart import BIN, CHARTS, render, run_tool
from tools.helm_tools import ROOT

pytestmark = pytest.mark.timeout(180)

HERE = Path(__file__).resolve().parent
ALERTS = CHARTS / "paceline" / "files" / "alerts.yaml"
DASHBOARD = CHARTS / "paceline" / "files" / "dashboard.json"
OPERATIONS = ROOT / "docs" / "operations.md"
GAUGES_OF_SCALERS = re.compile(r"paceline_[a-z_]+")
SERIES = re.compile(r"\bpaceline_[a-z0-9_]+")


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Prometheus reads from each service of a line that has answered a request."""
    return asyncio.run(scraped(tmp_path_factory.mktemp("line")))


async def scraped(folder: Path) -> dict[str, str]:
    model = write_model_folder(folder / "model")
    pool = drafter(folder, "ngram")
    engine = verifier(folder, "verifier", model, f"--pools=ngram={pool.address}")
    door = gateway(folder, "gateway", model, f"--verifiers={engine.address}")
    services = {"draft": pool, "verifier": engine, "gateway": door}
    async with running(*services.values()):
        async with paceline.AsyncClient(door.address) as client:
            await client.generate("a a a a", max_tokens=20, drafting="on", ignore_eos=True)
        return {name: await service.metrics() for name, service in services.items()}


@pytest.fixture(scope="module")
def exposed(scrapes: dict[str, str]) -> set[str]:
    """The names of all series that the three services can show."""
    names = set()
    for text in scrapes.values():
        for family in text_string_to_metric_families(text):
            names |= {sample.name for sample in family.samples}
            names |= _of_empty_family(family.name, family.type)
    return {name for name in names if name.startswith("paceline_")}


def _of_empty_family(name: str, kind: str) -> set[str]:
    match kind:
        case "counter":
            return {f"{name}_total"}
        case "histogram":
            return {f"{name}_{suffix}" for suffix in ("bucket", "sum", "count")}
        case _:
            return {name}


def alert_names() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def test_alert_rules_are_valid() -> None:
    run_tool(BIN / "promtool", "check", "rules", "--lint-fatal", str(ALERTS))


def test_every_alert_fires_on_its_symptom_and_only_then() -> None:
    run_tool(BIN / "promtool", "test", "rules", str(HERE / "alert_tests.yaml"))


def test_every_alert_has_a_test_that_makes_it_fire() -> None:
    cases = yaml.safe_load((HERE / "alert_tests.yaml").read_text(encoding="utf-8"))["tests"]
    fired = {
        rule["alertname"]
        for case in cases
        for rule in case["alert_rule_test"]
        if rule["exp_alerts"]
    }

    assert fired == set(alert_names())


def test_every_alert_has_a_section_in_the_runbook() -> None:
    headings = re.findall(r"^#+ (\w+)$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)

    assert [name for name in alert_names() if name not in headings] == []


def test_dashboard_and_alerts_use_only_metrics_that_exist(exposed: set[str]) -> None:
    expressions = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        for target in panel.get("targets", [])
    ]
    expressions += [
        rule["expr"]
        for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    used = set(SERIES.findall(" ".join(expressions)))

    assert len(used) > 25
    assert used - exposed == set()


def test_dashboard_expressions_are_valid(tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = [
        {
            "record": f"panel:{number}",
            "expr": expression.replace("$__rate_interval", "5m").replace("$namespace", "a"),
        }
        for number, expression in enumerate(expressions)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))

    run_tool(BIN / "promtool", "check", "rules", str(path))


def test_scalers_use_metrics_that_exist(exposed: set[str]) -> None:
    values = {
        f"{where}.keda.enabled": True for where in ("gateway", "verifierDefaults", "draftDefaults")
    }
    queries = [
        item["spec"]["triggers"][0]["metadata"]["query"]
        for item in render(values).objects()
        if item["kind"] == "ScaledObject"
    ]
    used = {name for query in queries for name in GAUGES_OF_SCALERS.findall(query)}

    assert len(queries) == 3
    assert used - exposed == set()


def test_every_metric_is_documented(exposed: set[str]) -> None:
    text = OPERATIONS.read_text(encoding="utf-8")
    names = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed}

    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_every_documented_metric_exists(exposed: set[str]) -> None:
    text = OPERATIONS.read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(paceline_[a-z0-9_]+)` \|", text, re.MULTILINE))
    names = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed}

    assert documented - names == set()


@pytest.mark.parametrize("service", ["draft", "verifier", "gateway"])
def test_metric_names_please_promtool(service: str, scrapes: dict[str, str]) -> None:
    outcome = subprocess.run(  # noqa: S603 own arguments
        [str(BIN / "promtool"), "check", "metrics"],
        input=scrapes[service],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (outcome.returncode, outcome.stdout + outcome.stderr) == (0, "")


def test_a_request_leaves_its_traces_in_all_three_services(scrapes: dict[str, str]) -> None:
    expected = {
        "gateway": 'paceline_requests_total{code="OK",rpc="Generate"} 1.0',
        "verifier": "paceline_generation_tokens_total 20.0",
        "draft": 'paceline_draft_proposals_total{drafter="ngram"}',
    }

    for service, line in expected.items():
        assert line in scrapes[service]
        assert f'paceline_build_info{{service="{service}"' in scrapes[service]
