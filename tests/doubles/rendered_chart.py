"""Renders the charts with the real Helm, and finds objects in what comes out."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tools.helm_tools import FOLDER, ROOT

BIN = FOLDER / "bin"
CHARTS = ROOT / "helm"
NAMESPACE = "serving"
RELEASE = "line"
HELMS = ("helm3", "helm4")
PROFILES = ("values.yaml", "values-cpu-demo.yaml", "values-gpu.yaml", "values-prod.yaml")
NEEDED: Mapping[str, Mapping[str, object]] = {
    "values-gpu.yaml": {
        "model.hub.repository": "some/model",
        "model.hub.revision": "0123456789abcdef0123456789abcdef01234567",
    }
}
"""What a profile leaves to its user."""
CUSTOM_APIS = (
    "monitoring.coreos.com/v1",
    "keda.sh/v1alpha1",
    "gateway.networking.k8s.io/v1",
    "leaderworkerset.x-k8s.io/v1",
)

Manifest = dict[str, Any]

_SEPARATOR = re.compile(r"^---$", re.MULTILINE)


class RenderingRefused(Exception):
    """Helm refused; the message is its standard error."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The manifests of one release."""

    text: str

    def objects(self) -> list[Manifest]:
        """Return all objects."""
        documents = yaml.load_all(self.text, Loader=yaml.CSafeLoader)  # ten times as fast
        return [document for document in documents if document]

    def by_key(self) -> dict[tuple[str, str], str]:
        """Return the exact text of each object, by kind and name."""
        texts = [part for part in _SEPARATOR.split(self.text) if part.strip()]
        return {_key(yaml.load(text, Loader=yaml.CSafeLoader)): text.strip() for text in texts}

    def get(self, kind: str, name: str) -> Manifest:
        """Return one object; its name is given without the release's."""
        found = [item for item in self.objects() if _key(item) == (kind, f"line-paceline{name}")]
        if len(found) != 1:
            raise LookupError(f"{len(found)} objects {kind} line-paceline{name}")
        return found[0]

    def kinds(self) -> set[str]:
        """Return the kinds of all objects."""
        return {str(item["kind"]) for item in self.objects()}

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """Yield the name and pod spec of everything that makes pods."""
        for item in self.objects():
            name = f"{item['kind']}/{item['metadata']['name']}"
            if item["kind"] == "Pod":
                yield name, item["spec"]
            elif item["kind"] in {"Deployment", "Job"}:
                yield name, item["spec"]["template"]["spec"]
            elif item["kind"] == "LeaderWorkerSet":
                template = item["spec"]["leaderWorkerTemplate"]
                yield f"{name}/leader", template["leaderTemplate"]["spec"]
                yield f"{name}/worker", template["workerTemplate"]["spec"]

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings file of a component."""
        data: str = self.get("ConfigMap", name)["data"]["settings.yaml"]
        settings: dict[str, Any] = yaml.safe_load(data)
        return settings


def render(
    values: Mapping[str, object] | None = None,
    *,
    profile: str = "values.yaml",
    chart: str = "paceline",
    helm: str = "helm4",
    apis: tuple[str, ...] = CUSTOM_APIS,
) -> Rendered:
    """
    Return what a chart renders to.

    ``values`` are set one by one, by path, above those of the profile.
    """
    given = {**NEEDED.get(profile, {}), **(values or {})}
    settings = tuple(f"{path}={json.dumps(value)}" for path, value in given.items())
    api_flags = tuple(flag for api in apis for flag in ("--api-versions", api))
    return Rendered(_run("template", settings, profile, chart, helm, api_flags))


def pod_of(name: str, values: Mapping[str, object] | None = None) -> Manifest:
    """Return the pod spec of a Deployment of chart ``paceline``."""
    spec: Manifest = render(values).get("Deployment", name)["spec"]["template"]["spec"]
    return spec


def container_of(name: str, values: Mapping[str, object] | None = None) -> Manifest:
    """Return the service's container of a Deployment of chart ``paceline``."""
    container: Manifest = pod_of(name, values)["containers"][0]
    return container


def notes(values: Mapping[str, object] | None = None, *, chart: str = "paceline") -> str:
    """Return what Helm says after an installation."""
    settings = tuple(f"{path}={json.dumps(value)}" for path, value in (values or {}).items())
    said = _run("install", settings, "values.yaml", chart, "helm4", ("--dry-run=client",))
    return said.partition("\nNOTES:\n")[2]


@lru_cache(maxsize=512)
def _run(
    verb: str,
    settings: tuple[str, ...],
    profile: str,
    chart: str,
    helm: str,
    flags: tuple[str, ...],
) -> str:
    folder = CHARTS / chart
    command = [verb, RELEASE, str(folder), "--namespace", NAMESPACE]
    command += ["--values", str(folder / profile)]
    for setting in settings:
        command += ["--set-json", setting]
    return run_helm(helm, *command, *flags)


def run_helm(helm: str, *arguments: str) -> str:
    """Return Helm's standard output; raises ``RenderingRefused``."""
    return run_tool(BIN / helm, *arguments)


def run_tool(program: Path | str, *arguments: str, folder: Path | None = None) -> str:
    """Return a tool's standard output; raises ``RenderingRefused`` with all that it said."""
    outcome = subprocess.run(  # noqa: S603 own arguments
        [str(program), *arguments], check=False, capture_output=True, text=True, cwd=folder
    )
    if outcome.returncode:
        raise RenderingRefused(outcome.stdout + outcome.stderr)
    return outcome.stdout


def _key(item: Manifest) -> tuple[str, str]:
    return str(item["kind"]), str(item["metadata"]["name"])
