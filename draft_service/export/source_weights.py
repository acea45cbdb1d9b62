"""Reads the weights of a Hugging Face model folder, tensor by tensor, as float32."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError

Matrix = npt.NDArray[np.float32]

_DTYPES = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "BF16": np.uint16}
_PREFIXES = ("", "model.language_model.", "language_model.model.", "language_model.")


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""


class SourceWeights:
    """The tensors of a folder's safetensors files, read when asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConfigurationError(
                f"{folder} holds no .safetensors file; "
                "download the model in that format, or convert its GGUF file with --gguf"
            )
        self._places: dict[str, _Place] = {}
        digest = hashlib.sha256()
        for file in files:
            self._places |= _read_header(file)
            digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
        self.digest = digest.hexdigest()
        """Changes whenever a file does."""

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def get(self, name: str) -> Matrix:
        """Return a tensor; raises ``ConfigurationError`` if the folder lacks it."""
        place = self._find(name)
        if place is None:
            raise ConfigurationError(
                f"{self._folder} lacks the weights {name}; use a complete copy of the model"
            )
        count = int(np.prod(place.shape, dtype=np.int64))
        dtype = _DTYPES.get(place.dtype)
        if dtype is None:
            raise ConfigurationError(
                f"{self._folder} holds {name} as {place.dtype}; "
                "use a copy of the model that is not quantized (float16, bfloat16 or float32)"
            )
        stored = np.fromfile(place.file, dtype=dtype, count=count, offset=place.offset)
        if place.dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32, copy=False).reshape(place.shape)

    def _find(self, name: str) -> _Place | None:
        # Models that also see images keep their text part under a prefix.
        stem = name.removeprefix("model.")
        candidates = (name, *(f"{prefix}{stem}" for prefix in _PREFIXES), f"language_model.{name}")
        return next(
            (self._places[each] for each in candidates if each in self._places),
            None,
        )


def _read_header(file: Path) -> dict[str, _Place]:
    """Return where each tensor of a safetensors file lies: length, JSON header, then the data."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
        return {
            name: _place(file, 8 + size, entry)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (
        *(OSError, ValueError, KeyError, TypeError, AttributeError),
        *(OverflowError, MemoryError, RecursionError),
    ) as error:
        raise ConfigurationError(
            f"{file} is no safetensors file, or not all of one; download it again"
        ) from error


def _place(file: Path, data_at: int, entry: Mapping[str, Any]) -> _Place:
    """Return where a tensor lies; raises ``ValueError`` if the file does not hold all of it."""
    shape, dtype = tuple(entry["shape"]), _DTYPES.get(entry["dtype"])
    start, end = entry["data_offsets"]
    size = math.prod(shape) * (np.dtype(dtype).itemsize if dtype else 0)
    if min(start, *shape, 0) < 0 or data_at + max(end, start + size) > file.stat().st_size:
        raise ValueError(f"{shape} from {start} to {end} is not in the file")
    return _Place(file, str(entry["dtype"]), shape, data_at + start)
