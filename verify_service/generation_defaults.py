"""The sampling that a model's own ``generation_config.json`` asks for; equal for every path."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.errors import ConfigurationError
from verify_service.engine.sampling import SamplingParams


def generation_defaults(folder: Path) -> SamplingParams:
    """
    Return the defaults for unset sampling fields.

    Without ``do_sample`` the model is greedy, as in transformers. Raises ``ConfigurationError``
    when the file cannot be read.
    """
    path = folder / "generation_config.json"
    if not path.exists():
        return SamplingParams()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; repair or remove it") from None
    repetition_penalty = float(config.get("repetition_penalty") or 1.0)
    if not config.get("do_sample"):
        return SamplingParams(repetition_penalty=repetition_penalty)
    temperature = config.get("temperature")
    return SamplingParams(
        temperature=1.0 if temperature is None else float(temperature),
        top_k=int(config.get("top_k") or 0),
        top_p=float(config.get("top_p") or 1.0),
        min_p=float(config.get("min_p") or 0.0),
        repetition_penalty=repetition_penalty,
    )
