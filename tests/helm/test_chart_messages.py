"""What an installation tells its user, and its own test, are commands that work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import pytest

from paceline.cli.main import build_parser
from tests.doubles.rendered_chart import Manifest, notes, render

SECURED = {
    "gateway.tls": {"existingSecret": "tls", "clientCASecret": "ca"},
    "gateway.auth.apiKeysSecret.name": "keys",
    "tests.apiKeySecret.name": "key",
    "tests.certificateSecret": "certificate",
}


@pytest.mark.parametrize("values", [{}, SECURED])
def test_every_command_of_the_notes_is_one_that_the_program_knows(
    values: Mapping[str, object],
) -> None:
    commands = re.findall(r"(?:-m )?paceline (generate .*)", notes(values))

    assert commands
    for command in commands:
        options = build_parser().parse_args(shlex.split(command))
        assert options.prompt


def test_the_notes_give_one_command_that_needs_nothing_but_kubectl() -> None:
    said = notes()
    first = next(line.strip() for line in said.splitlines() if line.startswith("  "))

    assert first.startswith("kubectl -n serving exec deploy/line-paceline-gateway ")
    assert "--address line-paceline-gateway:50051" in first


def test_the_notes_name_the_pools() -> None:
    assert "Draft pools: ngram (weight 100)" in notes()
    assert "none, so decoding is plain" in notes({"drafts.ngram.enabled": False})


def test_the_notes_say_what_the_cluster_lacks() -> None:
    assert "lacks monitoring.coreos.com/v1" in notes({"monitoring.podMonitor.enabled": True})
    assert "WARNING" not in notes()


def test_the_notes_of_a_draft_release_say_how_it_joins() -> None:
    said = notes({"pool.name": "mine", "pool.weight": 7}, chart="paceline-draft")

    assert '"mine":{"address":"line-paceline-draft-mine.serving.svc.cluster.local:50053"' in said
    assert '"weight":7' in said


def pod_of_the_test(values: Mapping[str, object]) -> Manifest:
    pod: Manifest = render(values).get("Pod", "-test")
    return pod


@pytest.mark.parametrize("values", [{}, SECURED])
def test_helm_test_generates_with_drafts_and_without(values: Mapping[str, object]) -> None:
    pod = pod_of_the_test(values)
    parsed = [
        build_parser().parse_args([container["command"][-1], *container["args"]])
        for container in pod["spec"]["containers"]
    ]

    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert {options.no_draft for options in parsed} == {False, True}
    assert {container["image"] for container in pod["spec"]["containers"]} == {
        "paceline/gateway:0.1.0"
    }


def test_helm_test_mounts_the_authority_but_never_the_gateways_key() -> None:
    volumes = {volume["name"]: volume for volume in pod_of_the_test(SECURED)["spec"]["volumes"]}

    assert volumes["tls"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
