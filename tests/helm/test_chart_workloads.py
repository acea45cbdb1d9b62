"""What the manifests say: rollouts, probes, scaling, volumes and models."""

from __future__ import annotations

import pytest

from tests.doubles.rendered_chart import (
    PROFILES,
    Manifest,
    RenderingRefused,
    container_of,
    pod_of,
    render,
)

VERIFIER, GATEWAY, DRAFT = "-verifier-main", "-gateway", "-draft-ngram"
GPU_MODEL = {"model.source": "image", "model.path": "/models/target"}


@pytest.mark.parametrize(
    ("replicas", "gpus", "expected"),
    [
        (1, 1, {"type": "Recreate"}),
        (1, 8, {"type": "Recreate"}),
        (
            *(2, 1),
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        ),
        (
            *(1, 0),
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        ),
    ],
)
def test_a_rollout_never_waits_for_a_gpu_that_its_predecessor_holds(
    replicas: int, gpus: int, expected: Manifest
) -> None:
    pool = {"verifiers.main.replicas": replicas, "verifiers.main.gpu.count": gpus}
    deployment = render({**GPU_MODEL, **pool}).get("Deployment", VERIFIER)

    assert deployment["spec"]["strategy"] == expected


def test_a_scaled_gpu_pool_makes_room_before_it_rolls() -> None:
    values = {"verifiers.main": {"gpu": {"count": 1}, "autoscaling": {"enabled": True}}}
    deployment = render({**GPU_MODEL, **values}).get("Deployment", VERIFIER)["spec"]

    assert "replicas" not in deployment
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize("where", ["verifiers.main", "verifierDefaults", "drafts.ngram", "gateway"])
@pytest.mark.parametrize("none", [0, "0%"])
def test_a_rollout_that_could_not_proceed_is_refused(where: str, none: object) -> None:
    with pytest.raises(RenderingRefused):
        render({f"{where}.strategy": {"maxSurge": none, "maxUnavailable": none}})


def test_a_rollout_that_defaults_and_pool_block_together_is_refused() -> None:
    with pytest.raises(RenderingRefused, match="no rollout could ever proceed"):
        render(
            {
                "verifierDefaults.strategy.maxSurge": 0,
                "verifiers.main.strategy.maxUnavailable": 0,
            }
        )


@pytest.mark.parametrize("where", ["verifiers.main", "drafts.ngram", "gateway"])
def test_two_scalers_of_one_workload_are_refused(where: str) -> None:
    with pytest.raises(RenderingRefused):
        render({f"{where}.autoscaling.enabled": True, f"{where}.keda.enabled": True})


def test_two_scalers_from_defaults_and_pool_are_refused() -> None:
    with pytest.raises(RenderingRefused, match="exclude each other"):
        render({"draftDefaults.keda.enabled": True, "drafts.ngram.autoscaling.enabled": True})


@pytest.mark.parametrize("name", [VERIFIER, GATEWAY, DRAFT])
def test_probes_ask_by_grpc_and_liveness_never_asks_the_engine(name: str) -> None:
    container = container_of(name)

    assert container["readinessProbe"]["grpc"]["service"] == "readiness"
    assert container["livenessProbe"]["grpc"]["service"] == "liveness"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == container["ports"][0]["containerPort"]


@pytest.mark.parametrize(("name", "where"), [(VERIFIER, "verifiers.main"), (DRAFT, "drafts.ngram")])
def test_one_number_says_how_long_a_start_may_take(name: str, where: str) -> None:
    values = {f"{where}.startup.timeoutSeconds": 1234}
    probe = container_of(name, values)["startupProbe"]
    deployment = render(values).get("Deployment", name)

    assert probe["grpc"]["service"] == "readiness"
    assert 1234 <= probe["failureThreshold"] * probe["periodSeconds"] < 1240
    assert deployment["spec"]["progressDeadlineSeconds"] > 1234


@pytest.mark.parametrize(
    ("name", "where"),
    [(GATEWAY, "gateway"), (VERIFIER, "verifierDefaults"), (DRAFT, "draftDefaults")],
)
def test_tls_moves_the_probes_to_the_plaintext_admin_port(name: str, where: str) -> None:
    values = {f"{where}.tls": {"existingSecret": "certificate", "clientCASecret": "ca"}}
    container = container_of(name, values)
    settings = render(values).settings(name)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}

    assert container["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": "metrics"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/liveness", "port": "metrics"}
    assert settings["tls_certificate"].startswith(mounts["tls"])
    assert settings["tls_private_key"].startswith(mounts["tls"])
    assert settings["tls_client_ca"].startswith(mounts["client-ca"])


def test_the_gateway_finds_every_pod_of_every_verifier_pool() -> None:
    settings = render(profile="values-prod.yaml").settings(GATEWAY)
    domain = "serving.svc.cluster.local:50052"

    assert settings["verifiers"] == [
        f"dns:line-paceline-verifier-main.{domain}",
        f"dns:line-paceline-verifier-second.{domain}",
    ]


def test_a_single_machine_profile_fits_on_a_laptop() -> None:
    requests = [
        container["resources"]["requests"]
        for _, pod in render(profile="values-cpu-demo.yaml").pods()
        for container in pod["containers"]
    ]

    assert all("Gi" in request["memory"] or "Mi" in request["memory"] for request in requests)
    assert sum(int(request["memory"][0]) for request in requests if "Gi" in request["memory"]) <= 4


@pytest.mark.parametrize("name", [VERIFIER, GATEWAY, DRAFT])
def test_the_grace_period_covers_propagation_and_drain(name: str) -> None:
    settings = render().settings(name)
    needed = settings["propagation_delay_seconds"] + settings["drain_seconds"]

    assert needed + 10 <= pod_of(name)["terminationGracePeriodSeconds"] <= needed + 11


@pytest.mark.parametrize("profile", PROFILES)
def test_pods_meet_the_restricted_standard(profile: str) -> None:
    for name, spec in render(profile=profile).pods():
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            security = container["securityContext"]
            has_gpu = "nvidia.com/gpu" in container["resources"].get("limits", {})
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert security["readOnlyRootFilesystem"] is True or has_gpu or "verifier" in name
            assert {"requests", "limits"} <= container["resources"].keys(), name


def test_openshift_chooses_the_ids() -> None:
    for name, spec in render({"openshift.enabled": True}).pods():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys(), name


@pytest.mark.parametrize("name", [VERIFIER, GATEWAY, DRAFT])
def test_everything_that_libraries_write_goes_to_the_cache_volume(name: str) -> None:
    container = container_of(name)
    variables = {item["name"]: item.get("value", "") for item in container["env"]}
    writable = [
        *("HOME", "HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TRITON_CACHE_DIR"),
        *("TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "PACELINE_CACHE_DIR"),
    ]

    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]
    assert all(variables[name].startswith("/cache/") for name in writable)
    assert variables["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        ({"type": "emptyDir", "size": "3Gi"}, {"emptyDir": {"sizeLimit": "3Gi"}}),
        (
            {"type": "existingClaim", "claimName": "models"},
            {"persistentVolumeClaim": {"claimName": "models"}},
        ),
        (
            {"type": "hostPath", "hostPath": "/mnt/cache"},
            {"hostPath": {"path": "/mnt/cache", "type": "DirectoryOrCreate"}},
        ),
        (
            {"type": "claim"},
            {"persistentVolumeClaim": {"claimName": "line-paceline-verifier-main-cache"}},
        ),
    ],
)
def test_the_cache_can_be_of_several_kinds(cache: Manifest, volume: Manifest) -> None:
    pod = pod_of(VERIFIER, {"verifiers.main.cache": cache})

    assert {"name": "cache", **volume} in pod["volumes"]


def test_a_claim_that_several_pods_could_not_mount_is_refused() -> None:
    with pytest.raises(RenderingRefused, match="ReadWriteMany"):
        render({"verifiers.main": {"replicas": 2, "cache": {"type": "claim"}}})


def test_gpus_are_requested_and_shared_memory_is_mounted() -> None:
    pool = {"verifiers.main.gpu.count": 2, "verifiers.main.shmSize": "4Gi"}
    pod = pod_of(VERIFIER, {**GPU_MODEL, **pool})
    container = pod["containers"][0]

    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert container["image"].startswith("paceline/verify-torch-cuda:")
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]  # noqa: S108


def test_several_nodes_make_one_verifier_through_a_leader() -> None:
    multinode = {"enabled": True, "size": 4, "workerCommand": ["follow"]}
    rendered = render({"verifiers.main.multinode": multinode})
    template = rendered.get("LeaderWorkerSet", VERIFIER)["spec"]["leaderWorkerTemplate"]
    worker = template["workerTemplate"]["spec"]["containers"][0]
    selector = rendered.get("Service", VERIFIER)["spec"]["selector"]

    assert template["size"] == 4
    assert worker["command"] == ["follow"]
    assert "readinessProbe" not in worker
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    with pytest.raises(LookupError):
        rendered.get("Deployment", VERIFIER)


def test_several_nodes_need_the_clusters_leader_worker_sets() -> None:
    with pytest.raises(RenderingRefused, match="LeaderWorkerSet"):
        render({"verifiers.main.multinode.enabled": True}, apis=())


def test_scalers_point_at_their_workload() -> None:
    rendered = render({"gateway.keda.enabled": True, "drafts.ngram.autoscaling.enabled": True})
    scaled = rendered.get("ScaledObject", GATEWAY)["spec"]
    horizontal = rendered.get("HorizontalPodAutoscaler", DRAFT)["spec"]

    assert scaled["scaleTargetRef"]["name"] == "line-paceline-gateway"
    assert horizontal["scaleTargetRef"]["name"] == "line-paceline-draft-ngram"
    assert scaled["triggers"][0]["metadata"]["ignoreNullValues"] == "true"


def test_pods_spread_softly_over_nodes_and_zones() -> None:
    constraints = pod_of(GATEWAY)["topologySpreadConstraints"]

    assert [item["topologyKey"] for item in constraints] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert {item["whenUnsatisfiable"] for item in constraints} == {"ScheduleAnyway"}


@pytest.mark.parametrize("release", ["a" * 53, "paceline", "x"])
def test_names_fit_into_a_label_whatever_the_release_is_called(release: str) -> None:
    longest = "p" * 20
    rendered = render({"fullnameOverride": f"{release}-paceline", f"drafts.{longest}": {}})

    assert all(len(item["metadata"]["name"]) <= 63 for item in rendered.objects())
