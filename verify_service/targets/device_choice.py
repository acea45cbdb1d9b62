"""Where the torch target runs and how it holds its weights, or one line on why it cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import torch

from paceline.errors import ConfigurationError
from verify_service.targets.packed_linear import Packing, packing_works

Weights = Literal["auto", "float32", "packed-fp16", "bfloat16", "float16"]

_PLAIN_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_GIGABYTE = 1e9


def device_named(name: str) -> torch.device:
    """Return the device; raises ``ConfigurationError`` if there is none such."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"setting device: {name!r} is none; use cpu or cuda") from None
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigurationError("setting device: torch finds no CUDA device here; use cpu")
    index, count = device.index or 0, torch.cuda.device_count()
    if index >= count:
        raise ConfigurationError(f"setting device: {name} is none of {count}; use cuda:0")
    return torch.device("cuda", index)


def packing_for(device: torch.device, weights: Weights) -> Packing | None:
    """
    Return how exact layers hold their weights, or None where nothing is promised bit for bit.

    Raises ``ConfigurationError`` where ``weights`` cannot be held as asked.
    """
    if weights == "packed-fp16" and (device.type != "cpu" or not packing_works()):
        raise ConfigurationError(
            f"setting weights: packed-fp16 needs a CPU with AVX2, FMA and F16C, not {device}; "
            "use auto"
        )
    if device.type != "cpu" or weights in ("bfloat16", "float16"):
        return None
    if weights == "auto":
        return "packed-fp16" if packing_works() else "float32"
    return "float32" if weights == "float32" else "packed-fp16"


def dtype_for(packing: Packing | None, weights: Weights) -> torch.dtype:
    """Return the type of weights, activations and KV; ``auto`` is bfloat16 on accelerators."""
    return torch.float32 if packing else _PLAIN_DTYPES.get(weights, torch.bfloat16)


def require_one_rank(environment: Mapping[str, str] = os.environ) -> None:
    """
    Raise ``ConfigurationError`` when started as one of several ranks.

    The target owns the KV of all heads, and every rank would have to run the same batch; a rank
    that starts all the same would serve the whole model beside the others.
    """
    size = environment.get("WORLD_SIZE", "1")
    if size.isdecimal() and int(size) > 1:
        raise ConfigurationError(
            f"setting device: WORLD_SIZE is {size}, but the torch target has no tensor "
            "parallelism; start one verifier per GPU, without torchrun"
        )


def require_memory(needed: int, free: int, device: torch.device) -> None:
    """Raise ``ConfigurationError`` unless ``needed`` of ``free`` bytes leave room to work in."""
    if needed > 0.95 * free:
        raise ConfigurationError(
            f"setting model: its weights take {needed / _GIGABYTE:.1f} GB and {device} has "
            f"{free / _GIGABYTE:.1f} GB free; the torch target does not split a model over GPUs: "
            "choose a smaller one"
        )
