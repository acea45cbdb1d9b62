"""The rotary position embedding of a layer: its frequencies, from a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles per position  # [head_dim / 2]."""

    frequencies: tuple[float, ...]


def rotary_of(config: Mapping[str, object], layer_kind: str, head_dim: int) -> Rotary:
    """
    Return the rotary embedding of layers of a kind.

    Raises ``ConfigurationError`` for scalings that depend on the length of the text.
    """
    parameters = _parameters(config, layer_kind)
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    if kind not in ("default", "linear", "llama3") or partial != 1.0:
        raise ConfigurationError(
            f"rope scaling {kind!r} with partial_rotary_factor {partial} cannot be exported; "
            "default, linear and llama3 over whole heads can"
        )
    theta = _number(parameters, "rope_theta", 10000.0)
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if kind == "linear":
        frequencies /= _number(parameters, "factor", 1.0)
    elif kind == "llama3":
        frequencies = _llama3(frequencies, parameters)
    return Rotary(tuple(frequencies.tolist()))


def _parameters(config: Mapping[str, object], layer_kind: str) -> Mapping[str, object]:
    """Return the parameters as transformers 5 writes them, also of older configurations."""
    stated = config.get("rope_parameters")
    if isinstance(stated, Mapping):
        nested = stated.get(layer_kind)
        return nested if isinstance(nested, Mapping) else stated
    local_theta = config.get("rope_local_base_freq")
    if layer_kind == "sliding_attention" and local_theta is not None:
        return {"rope_theta": local_theta}
    scaling = config.get("rope_scaling")
    theta = config.get("rope_theta", 1e6 if local_theta is not None else 10000.0)
    return {"rope_theta": theta, **(scaling if isinstance(scaling, Mapping) else {})}


def _llama3(
    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]], parameters: Mapping[str, object]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Stretch long wavelengths by ``factor``, keep short ones, blend between (Llama 3.1)."""
    low = _number(parameters, "low_freq_factor", 1.0)
    high = _number(parameters, "high_freq_factor", 4.0)
    original = _number(parameters, "original_max_position_embeddings", 8192.0)
    wavelengths = 2 * math.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return frequencies * ((1 - smooth) / _number(parameters, "factor", 8.0) + smooth)


def _number(parameters: Mapping[str, object], key: str, default: float) -> float:
    value = parameters.get(key)
    return float(value) if isinstance(value, int | float) else default
