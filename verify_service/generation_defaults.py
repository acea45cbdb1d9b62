"""The sampling that a model's own ``generation_config.json`` asks for; equal for every path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.errors import ConfigurationError
from paceline.yaml_file import first_problem
from verify_service.engine.sampling import SamplingParams


class _GenerationConfig(BaseModel):
    """What is read of the file; null is as good as absent."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=10)] | None = None


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
        config = _GenerationConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; repair or remove it") from None
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ConfigurationError(f"{path}: {where}: {problem}; repair or remove it") from None
    repetition_penalty = config.repetition_penalty or 1.0
    if not config.do_sample:
        return SamplingParams(repetition_penalty=repetition_penalty)
    return SamplingParams(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_k=config.top_k or 0,
        top_p=config.top_p or 1.0,
        min_p=config.min_p or 0.0,
        repetition_penalty=repetition_penalty,
    )
