"""Writes safetensors files piece by piece, so that memory stays small whatever the model's size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float16] | npt.NDArray[np.float32]

_BYTES = {"F16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to write: its description now, its values when asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["F16", "F32"]
    pieces: Callable[[], Iterable[Values]]
    """The values in order, some at a time."""

    @property
    def num_bytes(self) -> int:
        """The size in the file."""
        return prod(self.shape) * _BYTES[self.dtype]


def write_safetensors(path: Path, tensors: list[PlannedTensor]) -> Iterator[int]:
    """Write the tensors, yielding the number of bytes written after each piece."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        end = start + tensor.num_bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            for piece in tensor.pieces():
                yield file.write(np.ascontiguousarray(piece).data)
