"""What docs/operations.md tells a newcomer to type renders, as it stands there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from tests.doubles.rendered_chart import Rendered, RenderingRefused, run_helm
from tools.helm_tools import ROOT

CHARTS = ROOT / "helm"
GUIDES = (
    ROOT / "docs" / "operations.md",
    CHARTS / "paceline" / "README.md",
    CHARTS / "paceline-draft" / "README.md",
)
Objects = Mapping[tuple[str, str], str]
POOLS = re.compile("drafts:|pool:")
SWAP = "# swap.yaml\n"
ROUTING = ("ConfigMap", "line-paceline-routing")


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language in the guides."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in GUIDES)
    return [
        dedent(body)
        for name, body in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
        if name == language
    ]


def installations() -> list[str]:
    """Return every whole `helm install` command; one with dots is no whole command."""
    joined = "\n".join(blocks("")).replace("\\\n", " ")
    commands = [line.partition("#")[0].strip() for line in joined.splitlines()]
    return [line for line in commands if line.startswith("helm install ") and "..." not in line]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file `my-values.yaml` as the guide shows it."""
    shown = next(block for block in blocks("yaml") if "imageRegistry" in block)
    path = tmp_path_factory.mktemp("values") / "my-values.yaml"
    path.write_text(shown, encoding="utf-8")
    return path


def test_there_is_a_command_for_each_installation() -> None:
    text = " ".join(installations())

    for profile in ("values-cpu-demo.yaml", "values-gpu.yaml", "values-prod.yaml"):
        assert f"helm/paceline/{profile}" in text


@pytest.mark.parametrize("command", installations())
@pytest.mark.parametrize("helm", ["helm3", "helm4"])
def test_a_command_of_the_guides_renders(helm: str, command: str, values: Path) -> None:
    arguments = re.sub(r"--wait|--timeout \S+", "", command).replace("my-values.yaml", str(values))
    _, _, *rest = shlex.split(arguments.replace("helm/paceline", str(ROOT / "helm" / "paceline")))

    kinds = [item["kind"] for item in yaml.safe_load_all(run_helm(helm, "template", *rest)) if item]

    assert {"Deployment", "NetworkPolicy", "ConfigMap"} <= set(kinds)


def test_my_values_leave_no_trace_of_the_profile_s_registry(values: Path) -> None:
    chart = ROOT / "helm" / "paceline"
    rendered = run_helm(
        *("helm4", "template", "line", str(chart)),
        *("-f", str(chart / "values-prod.yaml"), "-f", str(values)),
    )
    images = re.findall(r"image: (\S+)", rendered)

    assert images
    assert all(image.startswith("registry.example.com/") for image in images)
    assert "otlp" not in rendered


def test_my_values_without_the_profile_are_refused(values: Path) -> None:
    with pytest.raises(RenderingRefused, match="needs every -f of the installation again"):
        run_helm("helm4", "template", "line", str(CHARTS / "paceline"), "-f", str(values))


@pytest.mark.parametrize("shown", [text for text in blocks("yaml") if POOLS.match(text)])
def test_the_pools_of_the_guides_render(shown: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(shown, encoding="utf-8")
    given = yaml.safe_load(shown)
    chart = CHARTS / ("paceline-draft" if "pool" in given else "paceline")
    rendered = Rendered(run_helm("helm4", "template", "line", str(chart), "-f", str(path)))
    pools = given.get("drafts", {}).keys() | {given.get("pool", {}).get("name")} - {None}

    assert all(rendered.get("Deployment", f"-draft-{pool}") for pool in pools)


@pytest.fixture(scope="module")
def swap_steps(tmp_path_factory: pytest.TempPathFactory, values: Path) -> list[Objects]:
    """What is installed before the swap of the guide, and after each of its upgrades."""
    command = re.search(r"^helm upgrade (.*-f swap\.yaml)$", "\n".join(blocks("")), re.MULTILINE)
    assert command
    swap = tmp_path_factory.mktemp("swap") / "swap.yaml"
    paths = {"my-values.yaml": str(values), "swap.yaml": str(swap)}
    arguments = [paths.get(word, word) for word in shlex.split(command[1])]
    arguments = [str(ROOT / word) if word.startswith("helm/") else word for word in arguments]
    found: list[Objects] = []
    for shown in ["{}", *(text for text in blocks("yaml") if SWAP in text)]:
        swap.write_text(shown, encoding="utf-8")
        found.append(Rendered(run_helm("helm4", "template", *arguments)).by_key())
    return found


def changed(before: Objects, after: Objects) -> set[tuple[str, str]]:
    """Return the kinds and names of the objects that differ."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def test_every_step_of_the_swap_changes_its_pool_or_the_routing_alone(
    swap_steps: list[Objects],
) -> None:
    installed, tried, canary, moved, removed = swap_steps

    assert {name for _, name in changed(installed, tried)} == {"line-paceline-draft-ngram-next"}
    assert changed(tried, canary) == changed(canary, moved) == {ROUTING}
    assert {name for _, name in changed(moved, removed)} == {
        "line-paceline-draft-ngram",
        ROUTING[1],
    }


def test_the_swap_moves_all_that_the_old_pool_had(swap_steps: list[Objects]) -> None:
    routes = [
        yaml.safe_load(yaml.safe_load(step[ROUTING])["data"]["routing.yaml"])["pools"]
        for step in swap_steps
    ]
    weights = [{name: pool["weight"] for name, pool in pools.items()} for pools in routes]

    assert [step["ngram-next"] for step in weights] == [0, 0, 10, 90, 90]
    assert [step.get("ngram") for step in weights] == [90, 90, 80, 0, None]
    assert {step["ngram-wide"] for step in weights} == {10}
    assert {sum(step.values()) for step in weights} == {100}
