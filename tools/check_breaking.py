"""Checks that the protos break no peer built from an earlier commit (``buf breaking``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUF = Path(sys.executable).parent / "buf"


def main(argv: list[str] | None = None) -> int:
    """Compare with the named commit; a commit without protos is nothing to compare with."""
    (commit,) = sys.argv[1:] if argv is None else argv
    if not _has_protos(commit):
        sys.stdout.write(f"{commit} is not here or holds no protos: nothing to compare with\n")
        return 0
    against = f".git#ref={commit},subdir=protos"
    outcome = subprocess.run(  # noqa: S603 own arguments
        [BUF, "breaking", "protos", "--against", against], cwd=ROOT, check=False
    )
    if outcome.returncode:
        sys.stderr.write("paceline.v1 only grows: add fields, reserve removed ones\n")
    return outcome.returncode


def _has_protos(commit: str) -> bool:
    question = ["git", "cat-file", "-e", f"{commit}:protos/buf.yaml"]
    return subprocess.run(question, cwd=ROOT, check=False, capture_output=True).returncode == 0  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
