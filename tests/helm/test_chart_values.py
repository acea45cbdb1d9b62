"""Values, schema, README and templates agree; settings are what the services read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from tests.doubles.rendered_chart import CHARTS, PROFILES, RenderingRefused, notes, render
from tools.chart_files import stale_files
from tools.chart_readme import leaf_paths, params_of
from tools.chart_schema import FOREIGN
from tools.chart_settings import MANAGED, SETTINGS

NAMES = ("paceline", "paceline-draft")

COMPANIONS: Mapping[str, Mapping[str, object]] = {
    "*.autoscaling": {"*.autoscaling.enabled": True},
    "*.keda": {"*.keda.enabled": True},
    "*.cache.claimName": {"*.cache.type": "existingClaim"},
    "*.cache.hostPath": {"*.cache.type": "hostPath"},
    "*.cache.type": {"*.cache.hostPath": "/mnt/cache"},
    "verifierDefaults.enabled": {"verifiers.other.enabled": True},
    "*.cache.storageClassName": {"*.cache.type": "claim"},
    "*.cache.accessModes": {"*.cache.type": "claim"},
    "*.gpu.resourceName": {"*.gpu.count": 1, "*.image.repository": "own/verify"},
    "*.gpu.count": {"*.image.repository": "own/verify"},
    "*.multinode": {"*.multinode.enabled": True},
    "*.model.path": {"*.engine": "onnx", "*.model.source": "image"},
    "*.model.claimName": {"*.engine": "onnx", "*.model.source": "claim"},
    "*.model.hub": {
        "*.engine": "onnx",
        "*.model.source": "hub",
        "*.model.hub.repository": "some/model",
        "*.model.hub.revision": "1",
        "*.model.hub.tokenSecret.name": "token",
    },
    "*.model.source": {"*.engine": "onnx", "*.model.path": "/models/m"},
    "model.path": {"model.source": "image"},
    "model.claimName": {"model.source": "claim"},
    "model.hub": {
        "model.source": "hub",
        "model.hub.repository": "some/model",
        "model.hub.revision": "1",
        "model.hub.tokenSecret.name": "token",
        "verifierDefaults.cache.type": "claim",
    },
    "model.source": {"model.path": "/models/m"},
    "gateway.grpcRoute": {
        "gateway.grpcRoute.enabled": True,
        "gateway.grpcRoute.parentRefs": [{"name": "public"}],
    },
    "gateway.auth.apiKeysSecret.key": {"gateway.auth.apiKeysSecret.name": "keys"},
    "gateway.auth.jwksSecret.key": {"gateway.auth.jwksSecret.name": "keys"},
    "tests.apiKeySecret.key": {"tests.apiKeySecret.name": "key"},
    "tracing.ratio": {"tracing.otlpEndpoint": "http://collector:4317"},
    "tracing.resourceAttributes": {"tracing.otlpEndpoint": "http://collector:4317"},
    "networkPolicy.collector": {"tracing.otlpEndpoint": "http://collector:4317"},
    "networkPolicy.hub": {
        "model.source": "hub",
        "model.hub.repository": "some/model",
        "model.hub.revision": "1",
    },
    "monitoring.serviceMonitor": {"monitoring.serviceMonitor.enabled": True},
    "monitoring.podMonitor": {"monitoring.podMonitor.enabled": True},
    "monitoring.prometheusRule": {"monitoring.prometheusRule.enabled": True},
    "monitoring.dashboards": {"monitoring.dashboards.enabled": True},
    "verifiers": {"model.source": "image", "model.path": "/models/m"},
}
"""What else has to be set before a value shows; ``*`` is the pool's or the service's block."""

OTHERS: Mapping[str, object] = {
    "*.image.digest": f"sha256:{'1' * 64}",
    "*.image.pullPolicy": "Always",
    "*.service.type": "NodePort",
    "*.service.port": 6000,
    "*.cache.type": "hostPath",
    "*.cache.size": "77Gi",
    "*.cache.accessModes": ["ReadWriteMany"],
    "*.engine": "tensorrt-llm",
    "*.model.source": "image",
    "*.model.path": "/models/other",
    "*.strategy.type": "Recreate",
    "*.strategy.maxSurge": 3,
    "*.strategy.maxUnavailable": 3,
    "*.settings": {"drain_seconds": 77},
    "*.resources": {"requests": {"cpu": "77"}, "limits": {"memory": "77Gi"}},
    "*.shmSize": "7Gi",
    "*.affinity": {"nodeAffinity": {}},
    "global.logLevel": "debug",
    "global.logFormat": "console",
    "model.source": "image",
    "model.path": "/models/other",
    "verifiers": {"other": {}},
    "drafts": {"other": {}},
    "routing.default": "ngram",
    "routing.externalPools": {"far": {"address": "far.example:1", "weight": 3}},
    "monitoring.serviceMonitor.interval": "77s",
    "monitoring.podMonitor.interval": "77s",
    "tests.resources": {"requests": {"cpu": "77"}},
    "tracing.otlpEndpoint": "https://collector.example:4317",
    "tracing.ratio": 0.77,
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}}],
}
"""Another valid value, where the kind of the default does not tell one."""

OBJECTS: Mapping[str, object] = {
    "tolerations": [{"key": "own", "operator": "Exists"}],
    "extraEnv": [{"name": "OWN", "value": "1"}],
    "extraEnvFrom": [{"secretRef": {"name": "own"}}],
    "extraVolumes": [{"name": "own", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
    "metrics": [{"type": "Resource", "resource": {"name": "memory"}}],
    "triggers": [{"type": "cron", "metadata": {}}],
    "topologySpreadConstraints": [{"maxSkew": 7}],
    "parentRefs": [{"name": "own"}],
    "extraBackendRefs": [{"name": "own", "port": 1}],
    "applications": [{"podSelector": {}}],
    "monitoring": [{"podSelector": {}}],
    "dns": [{"podSelector": {}}],
    "hub": [{"podSelector": {}}],
    "collector": [{"podSelector": {}}],
}


def documented(chart: str) -> list[str]:
    text = (CHARTS / chart / "values.yaml").read_text(encoding="utf-8")
    return [param.path for param in params_of(text)]


def values_of(chart: str) -> dict[str, Any]:
    text = (CHARTS / chart / "values.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def looked_up(path: str, table: Mapping[str, Any]) -> Any:
    """Return the entry of the longest prefix of a path; ``*`` stands for its first part."""
    rest = path.partition(".")[2]
    while path:
        for key in (path, f"*.{rest}"):
            if key in table:
                return table[key]
        path, rest = path.rpartition(".")[0], rest.rpartition(".")[0]
    return None


def another(path: str, default: Any) -> object:
    known = (
        looked_up(path, OTHERS)
        if path in OTHERS or f"*.{path.partition('.')[2]}" in OTHERS
        else None
    )
    if known is not None:
        return known
    key = path.rpartition(".")[2]
    if key in OBJECTS:
        return OBJECTS[key]
    match default:
        case bool():
            return not default
        case int() | float():
            return default + 7
        case str():
            return "77" if default.isdigit() else "other"
        case list():
            return ["other"]
        case _:
            return {"other": "other"}


def default_at(chart: str, path: str) -> Any:
    value: Any = values_of(chart)
    for key in path.split("."):
        value = value[key]
    return value


def companions(chart: str, path: str) -> dict[str, object]:
    first = path.partition(".")[0]
    found: Mapping[str, object] = looked_up(path, COMPANIONS) or {}
    named = {_in_chart(chart, key.replace("*", first)): value for key, value in found.items()}
    if any(key.startswith("pool.model.") for key in named):
        named["pool.engine"] = "onnx"
    named.pop(path, None)
    return named


def _in_chart(chart: str, path: str) -> str:
    return f"pool.{path}" if chart == "paceline-draft" and path.startswith("model.") else path


def manifests(values: dict[str, object], chart: str) -> str:
    try:
        return render(values, chart=chart).text
    except RenderingRefused:
        return "refused"


def has_effect(chart: str, path: str) -> bool:
    before = companions(chart, path)
    after = {**before, path: another(path, default_at(chart, path))}
    if manifests(before, chart) != manifests(after, chart) != "refused":
        return True
    return notes(before, chart=chart) != notes(after, chart=chart)


def test_generated_files_are_fresh() -> None:
    assert stale_files() == [], "run `python -m tools.chart_files`"


@pytest.mark.parametrize("chart", NAMES)
def test_every_value_is_described_once_and_every_description_has_its_value(chart: str) -> None:
    paths = documented(chart)

    assert len(paths) == len(set(paths))
    assert set(leaf_paths(values_of(chart), set(paths))) == set(paths)


@pytest.mark.parametrize("chart", NAMES)
@pytest.mark.timeout(240)
def test_every_value_has_an_effect(chart: str) -> None:
    paths = documented(chart)
    with ThreadPoolExecutor(2) as pool:
        effects = dict(
            zip(paths, pool.map(lambda path: has_effect(chart, path), paths), strict=True)
        )

    assert [path for path, effect in effects.items() if not effect] == []


def open_objects(schema: Any, where: str = "") -> Iterator[str]:
    if isinstance(schema, dict):
        is_map = isinstance(schema.get("additionalProperties"), dict)
        is_foreign = schema.get("$comment") == FOREIGN
        is_open = schema.get("additionalProperties", True) is not False
        if schema.get("type") == "object" and is_open and not is_map and not is_foreign:
            yield where
        for key, value in schema.items():
            yield from open_objects(value, f"{where}/{key}")


@pytest.mark.parametrize("chart", NAMES)
def test_the_schema_leaves_no_object_open(chart: str) -> None:
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text(encoding="utf-8"))

    assert list(open_objects(schema)) == []


@pytest.mark.parametrize(
    "path",
    [
        *("surprise", "global.surprise", "gateway.surprise", "gateway.service.surprise"),
        *("gateway.settings.max_runing", "verifiers.main.settings.max_runing"),
        *("drafts.ngram.settings.max_runing", "drafts.ngram.imag", "drafts.ngram.image.tagg"),
        *("verifiers.main.gpu.number", "routing.weights", "monitoring.serviceMonitor.every"),
        *("drafts.Not_A_Name", "tests.surprise", "model.hub.branch", "paceline.paceline"),
    ],
)
def test_an_unknown_value_is_refused(path: str) -> None:
    with pytest.raises(RenderingRefused):
        render({path: "x"})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gateway.settings.max_running", "many"),
        ("gateway.settings.max_running", 0),
        ("verifiers.main.settings.draft_budget", "generous"),
        ("drafts.ngram.settings.ngram_min_probability", 2),
        ("drafts.ngram.replicas", -1),
        ("drafts.ngram.image.digest", "latest"),
        ("gateway.service.port", 0),
    ],
)
def test_a_value_out_of_range_is_refused(path: str, value: object) -> None:
    with pytest.raises(RenderingRefused):
        render({path: value})


@pytest.mark.parametrize("component", SETTINGS)
def test_every_setting_is_reachable_from_values(component: str) -> None:
    schema = json.loads((CHARTS / "paceline" / "values.schema.json").read_text(encoding="utf-8"))
    owner = schema["properties"].get(component) or schema["definitions"][component]
    given = owner["properties"]["settings"]["properties"].keys()
    fields = SETTINGS[component].model_fields.keys()

    assert fields - given - MANAGED[component].keys() == set()
    assert given - fields == set()


@pytest.mark.parametrize("component", SETTINGS)
def test_settings_that_the_chart_decides_are_settings_of_the_service(component: str) -> None:
    assert MANAGED[component].keys() - SETTINGS[component].model_fields.keys() == set()


CONFIGURATIONS: list[tuple[str, dict[str, object]]] = [
    *((profile, {}) for profile in PROFILES),
    (
        "values.yaml",
        {
            "gateway.tls": {"existingSecret": "tls", "clientCASecret": "ca"},
            "gateway.links": {"caSecret": "ca", "certificateSecret": "tls"},
            "gateway.auth": {"apiKeysSecret": {"name": "keys"}, "jwksSecret": {"name": "keys"}},
            "gateway.settings.jwt_issuer": "https://issuer.example",
            "gateway.settings.jwt_audience": "paceline",
            "verifierDefaults.tls": {"existingSecret": "tls", "clientCASecret": "ca"},
            "verifierDefaults.links": {"caSecret": "ca", "certificateSecret": "tls"},
            "draftDefaults.tls": {"existingSecret": "tls", "clientCASecret": "ca"},
            "tracing.otlpEndpoint": "http://collector.observability:4317",
            "gateway.settings.max_prompt_characters": 8_388_608,
            "drafts.ngram.settings.max_session_tokens": 8_388_608,
            "routing.default": "ngram",
        },
    ),
    (
        "values.yaml",
        {
            "drafts.matcher.engine": "suffix",
            "drafts.smart": {
                "engine": "composite",
                "model": {"source": "image", "path": "/models/small"},
                "settings": {"composite_members": ["ngram", "onnx"], "onnx_threads": 4},
            },
        },
    ),
]


@pytest.mark.parametrize(("profile", "values"), CONFIGURATIONS)
def test_services_accept_the_settings_that_they_get(
    profile: str, values: dict[str, object]
) -> None:
    seen = set()
    for item in render(values, profile=profile).objects():
        component = item["metadata"]["labels"]["app.kubernetes.io/component"]
        if item["kind"] == "ConfigMap" and "settings.yaml" in item["data"]:
            given = yaml.safe_load(item["data"]["settings.yaml"])
            SETTINGS[component](**given)
            seen.add(component)

    assert seen == set(SETTINGS)
