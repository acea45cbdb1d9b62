"""The charts under the validators that others would run on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.doubles.rendered_chart import (
    BIN,
    CHARTS,
    HELMS,
    NEEDED,
    PROFILES,
    Rendered,
    render,
    run_helm,
    run_tool,
)

HERE = Path(__file__).resolve().parent
KUBERNETES_VERSIONS = ("1.29.0", "1.33.0", "1.37.0")
EXAMPLES = CHARTS / "examples"
CHECKOV_SKIPS = CHARTS / "checkov-skips.yaml"
EXTRAS = {
    "gateway.keda.enabled": True,
    "gateway.grpcRoute.enabled": True,
    "gateway.grpcRoute.parentRefs": [{"name": "public", "namespace": "gateways"}],
    "drafts.ngram.autoscaling.enabled": True,
    "verifiers.main.multinode": {"enabled": True, "workerCommand": ["sleep", "infinity"]},
    "monitoring.podMonitor.enabled": True,
}


def all_renderings(helm: str) -> Iterator[tuple[str, Rendered]]:
    for profile in PROFILES:
        yield profile, render(profile=profile, helm=helm)
    yield "extras", render(EXTRAS, profile="values-gpu.yaml", helm=helm)
    yield "paceline-draft", render(chart="paceline-draft", helm=helm)


def needed(profile: str) -> Mapping[str, object]:
    return NEEDED.get(profile, {})


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    for name, rendered in all_renderings("helm4"):
        (folder / f"{Path(name).stem}.yaml").write_text(rendered.text, encoding="utf-8")
    for example in EXAMPLES.glob("*.yaml"):
        (folder / example.name).write_bytes(example.read_bytes())
    return folder


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("profile", PROFILES)
def test_lint_is_strict(helm: str, profile: str) -> None:
    run_helm(
        *(helm, "lint", str(CHARTS / "paceline"), "--strict"),
        *("--values", str(CHARTS / "paceline" / profile)),
        *(f"--set-json={path}={json.dumps(value)}" for path, value in needed(profile).items()),
    )


@pytest.mark.parametrize("helm", HELMS)
def test_lint_of_the_draft_chart_is_strict(helm: str) -> None:
    run_helm(helm, "lint", str(CHARTS / "paceline-draft"), "--strict")


def test_both_helms_render_the_same_objects() -> None:
    for (name, old), (_, new) in zip(all_renderings("helm3"), all_renderings("helm4"), strict=True):
        assert sorted(map(json.dumps, old.objects())) == sorted(map(json.dumps, new.objects())), (
            name
        )


@pytest.fixture(scope="module")
def verdicts(manifests: Path) -> Iterator[Mapping[str, Future[str]]]:
    """The slow validators, two at a time; a Kubernetes version or `checkov` names each."""
    files = sorted(map(str, manifests.glob("*.yaml")))
    validate, checkov = BIN / "kubernetes-validate", BIN / "checkov"
    strict = ("--strict", "--quiet", "-k")
    with ThreadPoolExecutor(2) as pool:
        yield {
            "checkov": pool.submit(
                run_tool,
                *(checkov, "--directory", str(manifests), "--framework", "kubernetes"),
                *("--output", "json", "--quiet", "--compact", "--soft-fail", "--skip-download"),
            ),
            **{
                version: pool.submit(run_tool, validate, *strict, version, *files)
                for version in KUBERNETES_VERSIONS
            },
        }


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_accepts_every_object(version: str, verdicts: Mapping[str, Future[str]]) -> None:
    verdicts[version].result()


def test_custom_resources_match_their_schemas(manifests: Path) -> None:
    schemas = {path.stem: path for path in (HERE / "schemas").glob("*.json")}
    seen = set()
    for path in manifests.glob("*.yaml"):
        for item in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if item and item["kind"] in schemas:
                seen.add(item["kind"])
                check_schema(schemas[item["kind"]], json.dumps(item))

    assert seen == set(schemas)


def test_the_example_pool_selects_the_gateways_and_their_port() -> None:
    text = (EXAMPLES / "inference-pool.yaml").read_text(encoding="utf-8")
    pool = next(
        item for item in yaml.safe_load_all(text) if item and item["kind"] == "InferencePool"
    )
    wanted = pool["spec"]["selector"]["matchLabels"].items()
    selected = {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]["containers"][0]["ports"]
        for item in render().objects()
        if item["kind"] == "Deployment"
        and wanted <= item["spec"]["template"]["metadata"]["labels"].items()
    }

    assert set(selected) == {"line-paceline-gateway"}
    ports = {port["name"]: port["containerPort"] for port in selected["line-paceline-gateway"]}
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == [ports["grpc"]]


def check_schema(schema: Path, text: str) -> None:
    program = "import json,sys,jsonschema; jsonschema.validate(*map(json.loads, sys.argv[1:]))"
    run_tool(BIN / "python", "-c", program, text, schema.read_text(encoding="utf-8"))


def test_yaml_is_clean(manifests: Path) -> None:
    sources = [*CHARTS.glob("*/values*.yaml"), *CHARTS.glob("*/Chart.yaml"), CHECKOV_SKIPS]
    sources += [*(CHARTS / "paceline" / "files").glob("*.yaml"), *EXAMPLES.glob("*.yaml")]
    written, rendered = (str(HERE / name) for name in ("yamllint.yaml", "yamllint-rendered.yaml"))

    run_tool(BIN / "yamllint", "--strict", "-c", written, *map(str, sources))
    run_tool(BIN / "yamllint", "--strict", "-c", rendered, str(manifests))


@pytest.mark.timeout(400)
def test_every_finding_of_checkov_is_explained(verdicts: Mapping[str, Future[str]]) -> None:
    failed = json.loads(verdicts["checkov"].result())["results"]["failed_checks"]
    found = {(item["check_id"], item["resource"].split(".")[0]) for item in failed}
    skips = yaml.safe_load(CHECKOV_SKIPS.read_text(encoding="utf-8"))
    explained = {(skip["check"], kind) for skip in skips for kind in skip["kinds"]}

    assert found - explained == set()
    assert explained - found == set(), "explained, but no longer found"
    assert all(skip["reason"] for skip in skips)
