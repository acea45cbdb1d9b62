"""The flags of a draft service for the demonstration model, by the kind of its drafter."""

from __future__ import annotations

from paceline.cli.line import MODEL_DRAFTERS
from paceline.cli.model_source import demo_model, draft_model


async def drafter_flags(drafter: str) -> tuple[str, ...]:
    """Return the flags; the drafter's model is made the first time."""
    flags = ("--drafter", drafter)
    if drafter not in MODEL_DRAFTERS:
        return flags
    return (*flags, "--onnx-model", str(await draft_model(await demo_model())))
