"""Writes the generated files of the charts, or checks that they are up to date (``--check``)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tools.chart_readme import with_table
from tools.chart_schema import paceline_draft_schema, paceline_schema

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ROOT / "helm"


def fresh_files() -> dict[Path, str]:
    """Return what each generated file should hold."""
    schemas = {"paceline": paceline_schema(), "paceline-draft": paceline_draft_schema()}
    files: dict[Path, str] = {}
    for name, schema in schemas.items():
        chart = CHARTS / name
        readme, values = chart / "README.md", (chart / "values.yaml").read_text(encoding="utf-8")
        files[chart / "values.schema.json"] = json.dumps(schema, indent=1) + "\n"
        files[readme] = with_table(readme.read_text(encoding="utf-8"), values)
    return files


def stale_files() -> list[str]:
    """Return the names of generated files that differ from what they should hold."""
    return [
        str(path.relative_to(ROOT))
        for path, text in fresh_files().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main(argv: list[str] | None = None) -> int:
    """Write, or check and return 1 when something is stale."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart_files", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    if not parser.parse_args(argv).check:
        for path, text in fresh_files().items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = stale_files()
    for name in stale:
        sys.stderr.write(f"{name} is stale; run `python -m tools.chart_files`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
