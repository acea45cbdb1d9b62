"""The line on the demonstration model, for the demonstration and the measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from paceline.cli.line import Line, LinePlan
from paceline.cli.model_source import demo_model

BUILD: Final = Path("build")
TINY_MODEL: Final = Path(__file__).resolve().parents[1] / "tests" / "models" / "tiny"


async def demo_line(model: Path | None = None) -> Line:
    """Return the line, not started; by default its model is converted the first time."""
    model = model or await demo_model()
    return Line(LinePlan(model=model, log_folder=BUILD / "logs", max_restart_seconds=0.5))
