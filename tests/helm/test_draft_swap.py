"""A draft pool changes alone: every other manifest stays byte-identical."""

from __future__ import annotations

import pytest

from tests.doubles.rendered_chart import RenderingRefused, render

PROD = "values-prod.yaml"
POOL = "line-paceline-draft-ngram"
ROUTING = ("ConfigMap", "line-paceline-routing")


def changed(values: dict[str, object], *, profile: str = PROD) -> set[tuple[str, str]]:
    """Return the objects that differ from the profile's, by kind and name."""
    before = render(profile=profile).by_key()
    after = render(values, profile=profile).by_key()
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.mark.parametrize(
    "values",
    [
        {"drafts.ngram.image.tag": "9.9.9"},
        {"drafts.ngram.image.repository": "elsewhere/draft"},
        {"drafts.ngram.image.digest": f"sha256:{'0' * 64}"},
        {"drafts.ngram.replicas": 7},
        {"drafts.ngram.resources.requests.cpu": "3"},
        {"drafts.ngram.gpu.count": 1},
        {
            "drafts.ngram.model": {
                "source": "hub",
                "hub": {"repository": "drafters/small", "revision": "0" * 40},
            },
            "drafts.ngram.engine": "onnx",
        },
        {"drafts.ngram.engine": "another"},
        {"drafts.ngram.settings.max_draft_tokens": 12},
        {"drafts.ngram.autoscaling.enabled": True},
        {"drafts.ngram.keda.enabled": True},
        {"drafts.ngram.podAnnotations": {"restarted-at": "today"}},
    ],
    ids=lambda values: next(iter(values)).removeprefix("drafts.ngram."),
)
def test_a_change_of_one_pool_leaves_everything_else_identical(values: dict[str, object]) -> None:
    keys = changed(values)

    assert ("Deployment", POOL) in keys
    assert {name for _, name in keys} == {POOL}


@pytest.mark.parametrize("values", [{"drafts.ngram.weight": 0}, {"routing.default": "ngram-wide"}])
def test_weights_and_the_default_change_the_routing_and_nothing_else(
    values: dict[str, object],
) -> None:
    assert changed(values) == {ROUTING}


def test_an_external_pool_changes_the_routing_and_nothing_else() -> None:
    pool = {"extra": {"address": "drafts.example:50053", "weight": 5}}

    assert changed({"routing.externalPools": pool}) == {ROUTING}


def test_a_new_pool_adds_its_own_objects_and_a_route() -> None:
    keys = changed({"drafts.fresh": {"weight": 5}})

    assert {name for _, name in keys} == {"line-paceline-draft-fresh", ROUTING[1]}


def test_a_removed_pool_takes_only_its_own_objects_and_its_route_along() -> None:
    keys = changed({"drafts.ngram-next.enabled": False})

    assert {name for _, name in keys} == {f"{POOL}-next", ROUTING[1]}


def test_no_pod_restarts_when_the_routing_changes() -> None:
    rendered = render(profile=PROD)
    routing = rendered.by_key()[ROUTING]
    checksums = [line for line in rendered.text.splitlines() if "checksum/" in line]

    assert "weight: 90" in routing
    assert all("checksum/config:" in line for line in checksums)
    assert changed({"drafts.ngram.weight": 1}).isdisjoint(
        {key for key in rendered.by_key() if key[0] == "Deployment"}
    )


def test_a_changed_setting_restarts_the_pods_that_read_it() -> None:
    before, after = render(), render({"drafts.ngram.settings.max_draft_tokens": 12})
    deployments = [
        rendered.get("Deployment", "-draft-ngram")["spec"]["template"]["metadata"]["annotations"]
        for rendered in (before, after)
    ]

    assert deployments[0]["checksum/config"] != deployments[1]["checksum/config"]


def test_a_chart_upgrade_alone_restarts_nothing() -> None:
    pods = [
        item["spec"]["template"]["metadata"]
        for item in render(profile=PROD).objects()
        if item["kind"] == "Deployment"
    ]

    assert pods
    assert all("helm.sh/chart" not in metadata["labels"] for metadata in pods)


def test_the_two_charts_make_the_same_pool() -> None:
    pool = {"pool.name": "ngram", "pool.replicas": 2, "paceline.release": "line"}
    alone = render(pool, chart="paceline-draft")
    within = render({"drafts.ngram.replicas": 2})
    keys = [key for key in alone.by_key() if key[1] == POOL]

    assert {kind for kind, _ in keys} >= {"Deployment", "Service", "ConfigMap", "NetworkPolicy"}
    for key in keys:
        assert alone.by_key()[key].replace("paceline-draft-0", "paceline-0") == (
            within.by_key()[key].replace("templates/drafts.yaml", "templates/draft.yaml")
        ).replace("# Source: paceline/", "# Source: paceline-draft/")


def test_a_default_that_no_pool_has_is_refused() -> None:
    with pytest.raises(RenderingRefused, match="there is no draft pool nowhere"):
        render({"routing.default": "nowhere"})


def test_an_external_pool_of_a_known_name_is_refused() -> None:
    with pytest.raises(RenderingRefused, match="already"):
        render({"routing.externalPools": {"ngram": {"address": "a:1"}}})
