"""The flags of a draft service for a model, by the kind of its drafter."""

from __future__ import annotations

from pathlib import Path

from paceline.cli.line import MODEL_DRAFTERS
from paceline.cli.model_source import demo_model, draft_model


async def drafter_flags(drafter: str, model: Path | None = None) -> tuple[str, ...]:
    """Return the flags, by default for the demonstration model; it is exported the first time."""
    flags = ("--drafter", drafter)
    if drafter not in MODEL_DRAFTERS:
        return flags
    return (*flags, "--onnx-model", str(await draft_model(model or await demo_model())))
