"""What each installation drags in, and that the light ones work without the heavy ones."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import paceline

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = {"torch", "transformers", "tensorrt-llm"}

IMPORT_WITHOUT = """
import importlib, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ImportError("refused: " + name)

sys.meta_path.insert(0, Refusing())
importlib.import_module({module!r})
"""


@pytest.mark.parametrize("extra", ["gateway", "draft"])
def test_light_installations_hold_no_torch(extra: str) -> None:
    """Walks the requirements of what is installed, extras included."""
    requirements = PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]

    assert _closure(requirements) & HEAVY == set()


def test_what_to_install_is_said_as_it_works_from_a_clone() -> None:
    """The package itself is on no index, so its name installs nothing; each extra must exist."""
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in ("paceline", "gateway", "draft_service", "verify_service")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }

    by_name = [str(path) for path, text in texts.items() if "paceline[" in text]
    named = {name for text in texts.values() for name in re.findall(r"'\.\[([a-z-]+)\]'", text)}

    assert by_name == []
    assert {"draft", "export", "telemetry", "verify"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_verify_installation_holds_torch() -> None:
    """The walk above does find torch where it is."""
    assert "torch" in _closure(PROJECT["optional-dependencies"]["verify"])


@pytest.mark.parametrize("module", ["gateway.server", "draft_service.server", "paceline.cli.main"])
def test_light_half_runs_without_torch(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there")

    assert _import_without({"torch", "transformers"}, module) == ""


def test_client_runs_without_arrays() -> None:
    assert _import_without({"torch", "numpy", "tokenizers"}, "paceline.client") == ""
    assert _import_without({"torch", "numpy", "tokenizers"}, "paceline.async_client") == ""


def test_importing_the_shared_package_pulls_in_no_transport() -> None:
    assert _import_without({"grpc", "google"}, "paceline.tree") == ""


@pytest.mark.parametrize("name", paceline.__all__)
def test_exported_name_exists(name: str) -> None:
    assert getattr(paceline, name) is not None


def test_every_exported_name_is_listed_once_and_in_order() -> None:
    assert sorted(set(paceline.__all__)) == paceline.__all__


def test_every_requirement_is_pinned_for_a_development_environment() -> None:
    pinned = {
        _normal(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }

    assert _closure(PROJECT["optional-dependencies"]["dev"] + PROJECT["dependencies"]) <= pinned


def _import_without(refused: set[str], module: str) -> str:
    script = IMPORT_WITHOUT.format(refused=refused, module=module)
    outcome = subprocess.run(  # noqa: S603 own script
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return outcome.stderr


def _closure(requirements: list[str]) -> set[str]:
    """Return the names of all that the requirements need; the project's extras are followed."""
    seen: set[tuple[str, str]] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        for extra in ("", *sorted(requirement.extras)):
            key = (_normal(requirement.name), extra)
            if key not in seen:
                seen.add(key)
                pending.extend(_needs(requirement.name, extra))
    return {name for name, _ in seen} - {PROJECT["name"]}


def _needs(name: str, extra: str) -> list[Requirement]:
    if _normal(name) == PROJECT["name"]:
        texts = PROJECT["optional-dependencies"].get(extra, []) if extra else []
        return [Requirement(text) for text in texts]
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [
        requirement
        for requirement in found
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    ]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
