"""Where models come from, and which reaches which service."""

from __future__ import annotations

import pytest

from draft_service.settings import DraftSettings
from tests.doubles.rendered_chart import (
    PROFILES,
    Manifest,
    RenderingRefused,
    container_of,
    pod_of,
    render,
)
from verify_service.settings import VerifySettings
from verify_service.targets.roofline import BYTES_PER_VALUE, GPUS, MODELS

VERIFIER, GATEWAY, DRAFT = "-verifier-main", "-gateway", "-draft-ngram"
CLAIMED = {"source": "claim", "claimName": "drafters", "path": "small"}


def test_a_claimed_model_is_mounted_read_only_wherever_it_is_read() -> None:
    values = {"model": {"source": "claim", "claimName": "models", "path": "llama"}}
    for name in (GATEWAY, VERIFIER):
        pod = pod_of(name, values)
        claim = {"claimName": "models", "readOnly": True}

        assert {"name": "model", "persistentVolumeClaim": claim} in pod["volumes"]
        assert render(values).settings(name)["model"] == "/models/llama"


def test_a_hub_model_is_pinned_and_fetched_before_the_service_goes_offline() -> None:
    hub = {"repository": "some/model", "revision": "0" * 40, "tokenSecret": {"name": "token"}}
    values: dict[str, object] = {"model": {"source": "hub", "hub": hub}}
    init = pod_of(VERIFIER, values)["initContainers"][0]
    folder = render(values).settings(VERIFIER)["model"]

    assert init["command"] == ["hf", "download"]
    assert init["args"] == ["some/model", f"--revision={'0' * 40}", f"--local-dir={folder}"]
    assert init["env"][-1]["valueFrom"]["secretKeyRef"] == {"name": "token", "key": "token"}
    assert folder.startswith("/cache/")


def test_a_gateway_fetches_no_weights() -> None:
    hub = {"repository": "some/model", "revision": "0" * 40}
    init = pod_of(GATEWAY, {"model": {"source": "hub", "hub": hub}})["initContainers"][0]

    assert "--include=*.json" in init["args"]


@pytest.mark.parametrize(
    "model",
    [
        {"source": "hub"},
        {"source": "hub", "hub": {"repository": "some/model", "revision": ""}},
        {"source": "claim"},
        {"source": "image", "path": "relative"},
    ],
)
def test_a_model_source_without_what_it_needs_is_refused(model: Manifest) -> None:
    with pytest.raises(RenderingRefused):
        render({"model": model})


@pytest.mark.parametrize("missing", ["repository", "revision"])
def test_the_gpu_profile_says_which_part_of_the_model_is_not_named(missing: str) -> None:
    with pytest.raises(RenderingRefused, match=rf"model\.hub\.{missing}: name the "):
        render({f"model.hub.{missing}": ""}, profile="values-gpu.yaml")


@pytest.mark.parametrize(
    "value",
    [
        {"model.path": "my-model"},
        {"model.claimName": "models"},
        {"model.hub.repository": "some/model"},
    ],
)
def test_a_model_that_would_be_ignored_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(RenderingRefused, match=r"model\.source is packaged.* every -f "):
        render(value)


def test_the_production_profile_serves_weights_that_fit_its_gpu() -> None:
    rendered = render(profile="values-prod.yaml")
    settings = VerifySettings(**rendered.settings(VERIFIER))
    model, gpu = MODELS["llama-3.1-8b"], GPUS["h100"]
    tokens = settings.max_running * 1024 + model.context_length
    weights = model.num_parameters * BYTES_PER_VALUE

    assert settings.weights == "bfloat16"
    assert str(settings.model) == f"/models/{model.name}-instruct"
    assert 1.1 * (weights + tokens * model.kv_bytes_per_token) < gpu.memory_bytes


def test_the_packaged_model_is_refused_on_a_gpu() -> None:
    with pytest.raises(RenderingRefused, match="packaged model"):
        render({"verifiers.main.gpu.count": 1})


def test_a_prefetch_job_fills_the_claim_and_is_another_job_for_another_revision() -> None:
    def job(revision: str) -> Manifest:
        hub = {"repository": "some/model", "revision": revision, "prefetchJob": True}
        values = {
            "model": {"source": "hub", "hub": hub},
            "verifiers.main.cache": {"type": "claim"},
        }
        jobs = [item for item in render(values).objects() if item["kind"] == "Job"]
        return jobs[0]

    first, second = job("0" * 40), job("1" * 40)

    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize("engine", ["onnx", "composite"])
@pytest.mark.parametrize(
    ("chart", "pool"), [("paceline", "drafts.ngram"), ("paceline-draft", "pool")]
)
def test_the_model_of_a_draft_pool_reaches_its_drafter(chart: str, pool: str, engine: str) -> None:
    rendered = render({f"{pool}.engine": engine, f"{pool}.model": CLAIMED}, chart=chart)
    name = DRAFT if chart == "paceline" else "-draft-extra"

    settings = DraftSettings(**rendered.settings(name))

    assert settings.drafter == engine
    assert str(settings.onnx_model) == "/models/small"
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in (
        rendered.get("Deployment", name)["spec"]["template"]["spec"]["containers"][0][
            "volumeMounts"
        ]
    )


def test_a_drafter_of_another_distribution_is_told_its_model_by_a_variable() -> None:
    values = {"drafts.ngram.engine": "theirs", "drafts.ngram.model": CLAIMED}
    variables = {item["name"]: item.get("value") for item in container_of(DRAFT, values)["env"]}

    assert variables["DRAFT_MODEL"] == "/models/small"
    assert "onnx_model" not in render(values).settings(DRAFT)
    assert "DRAFT_MODEL" not in str(container_of(DRAFT)["env"])


@pytest.mark.parametrize(
    ("pool", "cause"),
    [
        ({"engine": "onnx"}, r"\.engine onnx needs {where}\.model \(source image, claim or hub\)"),
        ({"engine": "composite"}, r"\.engine composite needs {where}\.model"),
        (
            {"engine": "composite", "settings": {"composite_members": ["ngram", "onnx"]}},
            r"\.engine composite needs {where}\.model",
        ),
        ({"engine": "suffix", "model": CLAIMED}, r"\.model: engine suffix reads no model"),
        ({"model": CLAIMED}, r"\.model: engine ngram reads no model"),
        ({"engine": "theirs", "model": {"path": "/m"}}, r"\.model\.source is none"),
    ],
)
@pytest.mark.parametrize(("chart", "where"), [("paceline", "drafts.m"), ("paceline-draft", "pool")])
def test_a_drafter_and_a_model_that_do_not_belong_together_are_refused(
    chart: str, where: str, pool: Manifest, cause: str
) -> None:
    with pytest.raises(RenderingRefused, match=where + cause.format(where=where)):
        render({f"{where}.{key}": value for key, value in pool.items()}, chart=chart)


def test_a_composite_of_matchers_needs_no_model() -> None:
    members = {"composite_members": ["ngram", "suffix"]}
    values = {"drafts.ngram.engine": "composite", "drafts.ngram.settings": members}

    assert "onnx_model" not in render(values).settings(DRAFT)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_draft_pod_has_time_to_compile_its_drafter(profile: str) -> None:
    probes = [
        container["startupProbe"]
        for name, pod in render(profile=profile).pods()
        for container in pod["containers"]
        if "-draft-" in name
    ]

    assert probes
    assert all(probe["failureThreshold"] * probe["periodSeconds"] >= 300 for probe in probes)
