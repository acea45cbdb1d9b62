"""The Dockerfiles: linted, pinned, unprivileged; and what their install steps really give."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.doubles.rendered_chart import BIN, CHARTS, run_tool
from tools.helm_tools import ROOT

IMAGES = CHARTS / "images"
DOCKERFILES = sorted(IMAGES.glob("*.Dockerfile"))
SLIM = ("gateway", "draft")


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line.strip()]


def stages(path: Path) -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage; those before the first are left out."""
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions(path):
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    run_tool(BIN / "hadolint", "--config", str(IMAGES / "hadolint.yaml"), str(path))


def test_there_is_an_image_for_every_repository_that_the_chart_may_name() -> None:
    names = {path.stem for path in DOCKERFILES}

    assert names == {"gateway", "draft", "verify-torch", "verify-tensorrt-llm"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_bases_are_named_with_a_digest_variable(path: Path) -> None:
    bases = [rest for name, rest in instructions(path) if name == "FROM"]
    arguments = dict(
        rest.split("=", 1) for name, rest in instructions(path) if name == "ARG" and "=" in rest
    )

    assert len(bases) == 2
    for base in bases:
        image, digest = re.match(r"\$\{(\w+)\}\$\{(\w+):\+@\$\{\2\}\}", base).groups()  # type: ignore[union-attr]
        assert re.search(r":[\w.-]+$", arguments[image]), "a tag, never latest"
        assert digest in arguments


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_the_last_stage_runs_without_privileges(path: Path) -> None:
    last = stages(path)[-1]

    assert ("USER", "10001:10001") in last
    assert [name for name, _ in last].index("USER") > max(
        index for index, (name, _) in enumerate(last) if name == "RUN"
    )


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_holds_only_its_own_service(path: Path) -> None:
    services = {"gateway", "draft_service", "verify_service"}
    copied = {
        word.removeprefix("./")
        for name, rest in instructions(path)
        if name == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    }

    assert len(copied & services) == 1


def replayed(path: Path, folder: Path) -> Path:
    """Run the first stage of a Dockerfile in a folder; return the environment that it makes."""
    source, environment = folder / "src", folder / "environment"
    source.mkdir()
    arguments: dict[str, str] = {}
    for name, rest in stages(path)[0]:
        if name == "ARG" and "=" in rest:
            key, value = rest.split("=", 1)
            arguments[key] = value
        elif name == "COPY":
            *names, _ = rest.split()
            for word in names:
                (source / word).symlink_to(ROOT / word)
        elif name == "RUN":
            command = rest.replace("/opt/paceline", str(environment))
            for key, value in arguments.items():
                command = command.replace(f"${{{key}}}", value)
            command = command.replace("--no-cache-dir", "-qq --disable-pip-version-check")
            command = re.sub(r"\bpython -m", f"{sys.executable} -m", command)
            subprocess.run(["/bin/sh", "-ec", command], cwd=source, check=True)  # noqa: S603
    return environment / "bin" / "python"


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Path]]]:
    """The environments of the slim images, made side by side."""
    with ThreadPoolExecutor(len(SLIM)) as pool:
        yield {
            name: pool.submit(
                replayed, IMAGES / f"{name}.Dockerfile", tmp_path_factory.mktemp(name)
            )
            for name in SLIM
        }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLIM)
def test_install_steps_give_a_service_without_torch_and_without_pip(
    name: str, tmp_path: Path, replays: Mapping[str, Future[Path]]
) -> None:
    python = replays[name].result()
    module = {"gateway": "gateway", "draft": "draft_service"}[name]
    others = {"gateway", "draft_service", "verify_service"} - {module}

    usage = run_tool(python, "-I", "-m", module, "--help", folder=tmp_path)
    missing = run_tool(
        *(python, "-I", "-c"),
        "import importlib.util as u; "
        f"print([m for m in {['torch', 'pip', 'transformers', *sorted(others)]!r} "
        "if u.find_spec(m)])",
        folder=tmp_path,
    )

    assert "--admin-listen" in usage
    assert missing.strip() == "[]"
    # What pods run besides the service: traces when asked for, a fetched model.
    run_tool(python, "-I", "-c", "import paceline.otlp_tracing", folder=tmp_path)
    run_tool(python.parent / "hf", "download", "--help", folder=tmp_path)
