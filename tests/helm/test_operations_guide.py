"""What docs/operations.md tells a newcomer to type renders, as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.doubles.rendered_chart import run_helm
from tools.helm_tools import ROOT

GUIDES = (ROOT / "docs" / "operations.md", ROOT / "helm" / "paceline" / "README.md")


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language in the guides."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in GUIDES)
    return [
        body
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
