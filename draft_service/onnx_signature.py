"""
What a decoder's inputs and outputs say about how to run it. It runs nothing.

The usual signature of exported decoders is understood (``input_ids``, ``attention_mask``,
``position_ids``, ``past_key_values.*``), and that of our own exports, which take trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError

TREE_MASK_RANK = 3
SLIDING_WINDOW = "sliding_window"
"""Under this name a graph of ours states the width of its windows."""

_PAST = re.compile(r"past(?:_key_values)?[._](\d+)[._](key|value)")
_PRESENT = re.compile(r"present(?:_key_values)?[._](\d+)[._](key|value)")
_KNOWN_INPUTS = {
    *("input_ids", "attention_mask", "position_ids", "logit_rows", "sliding_attention_mask"),
}
_DTYPES: dict[str, type[np.floating]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}


class NamedValue(Protocol):
    """An input or output as onnxruntime describes it."""

    @property
    def name(self) -> str:
        """Its name in the graph."""
        ...

    @property
    def type(self) -> str:
        """Such as ``tensor(float)``."""
        ...

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Sizes; free ones have names or none."""
        ...


@dataclass(frozen=True, slots=True)
class Signature:
    """How a decoder is fed and what it returns."""

    past_names: tuple[str, ...]
    """Key and value of each layer in turn."""
    present_names: tuple[str, ...]
    num_kv_heads: int
    head_dim: int
    kv_dtype: npt.DTypeLike
    takes_trees: bool
    """Has a mask per row, so that one pass can continue several branches."""
    has_mask: bool
    has_positions: bool
    window: int | None
    """Width of the sliding windows, where the graph has a mask for them."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one token's keys and values in all layers."""
        itemsize = np.dtype(self.kv_dtype).itemsize
        return len(self.past_names) * self.num_kv_heads * self.head_dim * itemsize


def read_signature(
    inputs: Iterable[NamedValue], outputs: Iterable[NamedValue], metadata: Mapping[str, str]
) -> Signature:
    """Return a graph's signature; raises ``ConfigurationError`` with what cannot be run."""
    given = {value.name: value for value in inputs}
    returned = {value.name for value in outputs}
    past, present = _by_layer(given, _PAST), _by_layer(returned, _PRESENT)
    strange = sorted(given.keys() - _KNOWN_INPUTS - set(past))
    if strange:
        raise _refusal(f"it needs the input {strange[0]}, which a drafter does not have")
    missing = [
        name for name, has in (("input_ids", given), ("logits", returned)) if name not in has
    ]
    if missing:
        raise _refusal(f"it has no {missing[0]}")
    if not past or len(past) != len(present):
        raise _refusal("it does not take and return its keys and values (past_key_values, present)")
    first = given[past[0]]
    heads, dim = _kv_dimensions(first)
    mask = given.get("attention_mask")
    takes_trees = mask is not None and len(mask.shape) == TREE_MASK_RANK and "logit_rows" in given
    if mask is not None and not takes_trees and len(mask.shape) != TREE_MASK_RANK - 1:
        raise _refusal(f"its attention_mask has {len(mask.shape)} dimensions instead of 2")
    return Signature(
        past_names=tuple(past),
        present_names=tuple(present),
        num_kv_heads=heads,
        head_dim=dim,
        kv_dtype=_DTYPES[first.type],
        takes_trees=takes_trees,
        has_mask=mask is not None,
        has_positions="position_ids" in given,
        window=int(metadata[SLIDING_WINDOW]) if "sliding_attention_mask" in given else None,
    )


def _by_layer(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    found = [(match, name) for name in names if (match := pattern.fullmatch(name))]
    return [name for _, name in sorted(found, key=lambda each: (int(each[0][1]), each[0][2]))]


def _kv_dimensions(value: NamedValue) -> tuple[int, int]:
    if value.type not in _DTYPES:
        raise _refusal(f"{value.name} is a {value.type}; float and float16 are supported")
    heads, dim = (value.shape[1], value.shape[3]) if len(value.shape) == 4 else (None, None)
    if not isinstance(heads, int) or not isinstance(dim, int):
        raise _refusal(f"{value.name} is {list(value.shape)}, not [batch, heads, tokens, size]")
    return heads, dim


def _refusal(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"setting onnx_model: the graph cannot draft: {reason}; "
        "export a decoder with past: python -m draft_service.export"
    )
