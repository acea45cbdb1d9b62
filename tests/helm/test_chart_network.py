"""Who may talk to whom, and how applications and Prometheus find the services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.doubles.rendered_chart import Manifest, Rendered, RenderingRefused, render

DNS_PORTS = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]


def policy(name: str, values: Mapping[str, object] | None = None, **options: Any) -> Manifest:
    spec: Manifest = render(values, **options).get("NetworkPolicy", name)["spec"]
    return spec


def components(peers: list[Manifest]) -> set[str]:
    return {
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for peer in peers
        if "app.kubernetes.io/component" in peer.get("podSelector", {}).get("matchLabels", {})
    }


def test_draft_pools_hear_only_verifiers_and_reach_only_dns() -> None:
    spec = policy("-draft-ngram")

    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [components(rule["from"]) for rule in spec["ingress"]] == [{"verifier"}]
    assert [rule["ports"] for rule in spec["egress"]] == [DNS_PORTS]


def test_verifiers_hear_only_gateways_and_reach_only_drafts_and_dns() -> None:
    spec = policy("-verifier-main")

    assert [components(rule["from"]) for rule in spec["ingress"]] == [{"gateway"}]
    assert spec["egress"][0]["ports"] == DNS_PORTS
    assert [components(rule["to"]) for rule in spec["egress"][1:]] == [{"draft"}]


def test_gateways_reach_only_verifiers_and_dns() -> None:
    spec = policy("-gateway")

    assert spec["egress"][0]["ports"] == DNS_PORTS
    assert [components(rule["to"]) for rule in spec["egress"][1:]] == [{"verifier"}]


def test_applications_can_be_limited_without_locking_out_helm_test() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "apps"}}}
    spec = policy("-gateway", {"networkPolicy.applications": [peer]})

    assert peer in spec["ingress"][0]["from"]
    assert components(spec["ingress"][0]["from"]) == {"test"}


def test_only_a_hub_model_opens_a_way_out() -> None:
    hub = {"repository": "some/model", "revision": "0" * 40}
    spec = policy("-verifier-main", {"model": {"source": "hub", "hub": hub}})

    assert spec["egress"][-1]["ports"] == [{"port": 443, "protocol": "TCP"}]


def test_metrics_are_readable_only_by_the_named_peers() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    spec = policy("-draft-ngram", {"networkPolicy.monitoring": [peer]})

    assert spec["ingress"][-1] == {
        "from": [peer],
        "ports": [{"port": "metrics", "protocol": "TCP"}],
    }


@pytest.mark.parametrize("chart", ["paceline", "paceline-draft"])
def test_policies_can_be_switched_off(chart: str) -> None:
    rendered = render({"networkPolicy.enabled": False}, chart=chart)

    assert "NetworkPolicy" not in rendered.kinds()


def test_a_draft_release_hears_the_verifiers_of_the_installation_that_it_joins() -> None:
    spec = policy("-draft-extra", {"paceline.release": "elsewhere"}, chart="paceline-draft")
    labels = spec["ingress"][0]["from"][0]["podSelector"]["matchLabels"]

    assert labels["app.kubernetes.io/instance"] == "elsewhere"
    assert labels["app.kubernetes.io/component"] == "verifier"


def services(rendered: Rendered) -> dict[str, Manifest]:
    return {
        item["metadata"]["name"]: item["spec"]
        for item in rendered.objects()
        if item["kind"] == "Service"
    }


def test_every_callee_is_headless_and_speaks_h2c() -> None:
    found = services(render(profile="values-prod.yaml"))
    headless = {name for name, spec in found.items() if spec.get("clusterIP") == "None"}

    assert headless == found.keys() - {"line-paceline-gateway"}
    for spec in found.values():
        assert spec["ports"][0]["appProtocol"] == "kubernetes.io/h2c"


def test_selectors_tell_pools_apart() -> None:
    rendered = render(profile="values-prod.yaml")
    selectors = [
        tuple(sorted(item["spec"]["selector"]["matchLabels"].items()))
        for item in rendered.objects()
        if item["kind"] == "Deployment"
    ]

    assert len(selectors) == len(set(selectors)) == 6


def test_a_service_selects_the_pods_of_its_deployment() -> None:
    rendered = render(profile="values-prod.yaml")
    for item in rendered.objects():
        if item["kind"] == "Deployment":
            name = item["metadata"]["name"].removeprefix("line-paceline")
            selector = rendered.get("Service", name)["spec"]["selector"]
            labels = item["spec"]["template"]["metadata"]["labels"]
            assert selector.items() <= labels.items()


def test_a_route_splits_traffic_by_weight() -> None:
    route = {
        "enabled": True,
        "parentRefs": [{"name": "public"}],
        "weight": 90,
        "extraBackendRefs": [{"name": "canary-paceline-gateway", "port": 50051, "weight": 10}],
    }
    spec = render({"gateway.grpcRoute": route}).get("GRPCRoute", "-gateway")["spec"]

    backends = spec["rules"][0]["backendRefs"]
    assert [backend["weight"] for backend in backends] == [90, 10]


MONITORED = {
    "monitoring.serviceMonitor.enabled": True,
    "monitoring.prometheusRule.enabled": True,
    "gateway.grpcRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
}


def test_optional_objects_are_left_out_where_the_cluster_does_not_know_them() -> None:
    optional = {"ServiceMonitor", "PrometheusRule", "GRPCRoute"}

    assert optional <= render(MONITORED).kinds()
    assert not optional & render(MONITORED, apis=()).kinds()


def test_two_kinds_of_monitor_are_refused() -> None:
    with pytest.raises(RenderingRefused):
        render({"monitoring.serviceMonitor.enabled": True, "monitoring.podMonitor.enabled": True})


def test_a_pod_is_scraped_once_by_a_service_monitor() -> None:
    rendered = render(MONITORED, profile="values.yaml")
    with_metrics = [
        name
        for name, spec in services(rendered).items()
        if any(port["name"] == "metrics" for port in spec["ports"])
    ]

    assert sorted(with_metrics) == [
        "line-paceline-draft-ngram",
        "line-paceline-gateway-headless",
        "line-paceline-verifier-main",
    ]


def test_the_runbook_address_reaches_every_alert() -> None:
    values = {
        "monitoring.prometheusRule": {"enabled": True, "runbookUrl": "https://runbooks.example/p"}
    }
    groups = render(values).get("PrometheusRule", "")["spec"]["groups"]
    alerts = [alert for group in groups for alert in group["rules"]]

    assert alerts
    for alert in alerts:
        anchor = alert["alert"].lower()
        assert alert["annotations"]["runbook_url"] == f"https://runbooks.example/p#{anchor}"


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.observability:4317", 4317),
        ("https://collector.example", 443),
        ("http://collector", 80),
    ],
)
@pytest.mark.parametrize("name", ["-gateway", "-verifier-main", "-draft-ngram"])
def test_every_service_reaches_the_collector_once_there_is_one(
    name: str, endpoint: str, port: int
) -> None:
    peer = {"ipBlock": {"cidr": "10.1.2.3/32"}}
    values = {"tracing.otlpEndpoint": endpoint, "networkPolicy.collector": [peer]}

    assert {"to": [peer], "ports": [{"port": port, "protocol": "TCP"}]} in policy(name, values)[
        "egress"
    ]
    assert all("ipBlock" not in str(rule) for rule in policy(name)["egress"])


def test_spans_say_which_pod_of_which_pool_made_them() -> None:
    values = {
        "tracing.otlpEndpoint": "http://collector:4317",
        "tracing.resourceAttributes": {"deployment.environment": "test"},
    }
    containers = render(values).get("Deployment", "-draft-ngram")["spec"]["template"]["spec"]
    env = {item["name"]: item for item in containers["containers"][0]["env"]}
    attributes = set(env["OTEL_RESOURCE_ATTRIBUTES"]["value"].split(","))

    assert attributes == {
        "deployment.environment=test",
        "k8s.namespace.name=serving",
        "k8s.pod.name=$(POD_NAME)",
        "paceline.pool=ngram",
        "service.namespace=line",
    }
    assert env["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_without_a_collector_nothing_speaks_of_traces() -> None:
    text = render().text

    assert "otlp" not in text
    assert "OTEL" not in text
