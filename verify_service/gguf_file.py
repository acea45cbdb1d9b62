"""Reads GGUF files: metadata, and tensors on demand. It knows the container, no model."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from paceline.errors import ConfigurationError

Scalar: TypeAlias = str | int | float | bool

_SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32  # bytes, where the file does not say otherwise
_CHUNK_VALUES = 8 * 1024 * 1024  # bounds the memory that one unpacking step takes


class _Truncated(Exception):
    """The file ends inside its own description."""


class _Cursor:
    """A position in the file's header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def scalar(self, code: str) -> Scalar:
        return self._unpack(f"<{code}")[0]

    def count(self) -> int:
        return int(self.scalar("Q"))

    def text(self) -> str:
        end = self.count() + self.position
        if end > len(self._data):
            raise _Truncated
        raw = self._data[self.position : end]
        self.position = end
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Scalar | list[Scalar]:
        return self._array() if kind == _ARRAY else self._plain(kind)

    def _plain(self, kind: int) -> Scalar:
        return self.text() if kind == _STRING else self.scalar(_SCALAR_FORMATS[kind])

    def _array(self) -> list[Scalar]:
        kind, count = int(self.scalar("I")), self.count()
        if count > len(self._data) - self.position:
            raise _Truncated
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        return list(self._unpack(f"<{count}{_SCALAR_FORMATS[kind]}"))

    def _unpack(self, layout: str) -> tuple[Scalar, ...]:
        size = struct.calcsize(layout)
        if self.position + size > len(self._data):
            raise _Truncated
        values = struct.unpack_from(layout, self._data, self.position)
        self.position += size
        return values


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as torch has it."""
    kind: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""

    @property
    def num_values(self) -> int:
        """The number of values, unpacked."""
        return int(np.prod(self.shape))

    @property
    def row_bytes(self) -> int:
        """The stored size of one row (the fastest dimension)."""
        block_values, block_bytes = GGML_QUANT_SIZES[self.kind]
        return int(self.shape[-1] // block_values * block_bytes)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.num_values // self.shape[-1]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's contents; tensors are read when asked for."""

    path: Path
    metadata: dict[str, Scalar | list[Scalar]]
    tensors: dict[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """The model family that the file names."""
        return self.text("general.architecture") or ""

    def text(self, key: str) -> str | None:
        """Return a string, or nothing where the key is absent or no string."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """Return an integer, or nothing where the key is absent or no integer."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else None

    def number(self, key: str) -> float | None:
        """Return a number as float32 spells it most shortly: 1e-06, not 9.99e-07."""
        value = self.metadata.get(key)
        return float(str(np.float32(value))) if isinstance(value, int | float) else None

    def flag(self, key: str) -> bool | None:
        """Return a boolean, or nothing where the key is absent or no boolean."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def texts(self, key: str) -> list[str]:
        """Return a list of strings; empty where the key is absent."""
        value = self.metadata.get(key)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers; empty where the key is absent."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            return []
        return [item for item in value if isinstance(item, int | float)]

    def rows(self, tensor: GgufTensor) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the tensor's rows as float32, some at a time: each [rows, columns]."""
        stored = np.memmap(
            self.path,
            mode="r",
            dtype=np.uint8,
            offset=tensor.offset,
            shape=(tensor.num_rows, tensor.row_bytes),
        )
        step = max(1, _CHUNK_VALUES // tensor.shape[-1])
        for start in range(0, tensor.num_rows, step):
            yield self._unpacked(tensor, stored[start : start + step])

    def _unpacked(
        self, tensor: GgufTensor, stored: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.float32]:
        try:
            return dequantize(np.ascontiguousarray(stored), tensor.kind)
        except NotImplementedError:
            raise ConfigurationError(
                f"{self.path} stores {tensor.name} in the unsupported format {tensor.kind.name}; "
                "use a Q4_K_M, Q8_0 or F16 file"
            ) from None


def read_gguf(path: Path) -> GgufFile:
    """Read a GGUF file's description and check that all of its tensors are there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigurationError(f"{path} is not a GGUF file; name a .gguf model file")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = _read_description(path, _Cursor(data))
        except _Truncated:
            raise _truncated(path, size) from None
    for tensor in found.tensors.values():
        if tensor.offset + tensor.row_bytes * tensor.num_rows > size:
            raise _truncated(path, size)
    return found


def _truncated(path: Path, size: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is truncated: it ends after {size} bytes, before its tensors do; download it again"
    )


def _read_description(path: Path, cursor: _Cursor) -> GgufFile:
    cursor.position = 4
    version = int(cursor.scalar("I"))
    if version not in (2, 3):
        raise ConfigurationError(
            f"{path} has GGUF version {version} (or is big-endian); convert it to version 3"
        )
    num_tensors, num_keys = cursor.count(), cursor.count()
    metadata: dict[str, Scalar | list[Scalar]] = {}
    for _ in range(num_keys):
        key = cursor.text()
        kind = int(cursor.scalar("I"))
        if kind not in _SCALAR_FORMATS and kind not in (_STRING, _ARRAY):
            raise ConfigurationError(f"{path} is damaged at key {key!r}; download it again")
        metadata[key] = cursor.value(kind)
    if int(str(metadata.get("split.count", 1))) > 1:
        raise ConfigurationError(
            f"{path} is one part of several; join them with `llama-gguf-split --merge` first"
        )
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    return GgufFile(path, metadata, _read_tensors(path, cursor, num_tensors, int(str(alignment))))


def _read_tensors(
    path: Path, cursor: _Cursor, num_tensors: int, alignment: int
) -> dict[str, GgufTensor]:
    entries: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(num_tensors):
        name = cursor.text()
        shape = tuple(cursor.count() for _ in range(int(cursor.scalar("I"))))
        if not shape or 0 in shape:
            raise ConfigurationError(f"{path} is damaged at tensor {name!r}; download it again")
        entries.append((name, shape[::-1], int(cursor.scalar("I")), cursor.count()))
    data_start = -(-cursor.position // alignment) * alignment
    return {
        name: GgufTensor(name, shape, _tensor_kind(path, name, kind), data_start + offset)
        for name, shape, kind, offset in entries
    }


def _tensor_kind(path: Path, name: str, kind: int) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(kind)
    except ValueError:
        raise ConfigurationError(
            f"{path} stores {name} in the unknown format {kind}; update the gguf package"
        ) from None
