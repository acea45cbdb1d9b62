"""Generates ``paceline/v1`` from ``protos``, or checks that it is up to date (``--check``)."""

from __future__ import annotations

import argparse
import importlib.resources
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "protos"
PACKAGE = Path("paceline/v1")
WITHOUT_SERVICE = "types"
"""The proto that holds no service: its gRPC stubs would be empty."""


def generate(target: Path) -> None:
    """Write the stubs of every proto below ``target``."""
    protos = sorted(str(path) for path in (PROTO_ROOT / PACKAGE).glob("*.proto"))
    scripts = Path(sys.executable).parent
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    outputs = ("python", "grpc_python", "mypy", "mypy_grpc")
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        *(f"-I{PROTO_ROOT}", f"-I{well_known}"),
        *(f"--plugin={path}" for path in sorted(scripts.glob("protoc-gen-mypy*"))),
        *(f"--{output}_out={target}" for output in outputs),
        *protos,
    ]
    outcome = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 own arguments
    if outcome.returncode:
        raise SystemExit(outcome.stderr)
    for path in (target / PACKAGE).glob(f"{WITHOUT_SERVICE}_pb2_grpc.*"):
        path.unlink()


def stale_stubs() -> list[str]:
    """Return the names of committed stubs that differ from what the protos say."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = _contents(Path(folder) / PACKAGE)
    committed = _contents(ROOT / PACKAGE)
    return sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )


def main(argv: list[str] | None = None) -> int:
    """Generate, or check and return 1 when something is stale."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate_stubs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    if not parser.parse_args(argv).check:
        generate(ROOT)
        return 0
    stale = stale_stubs()
    for name in stale:
        sys.stderr.write(f"{PACKAGE / name} does not match protos/; run `make protos`\n")
    return 1 if stale else 0


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*_pb2*.py*")}


if __name__ == "__main__":
    sys.exit(main())
