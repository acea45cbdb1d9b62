"""
The keys and values of one session, one slot per token. Slots are in no order: masks say what is
seen, so that nothing is moved when a branch of a tree is kept or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from draft_service.onnx_signature import Signature

Tensor = npt.NDArray[np.floating]

SLOTS_AT_ONCE = 64
"""Memory grows by at least this many slots, and by a quarter."""


class KvSlots:
    """Slots of one session; ``tensors`` can be fed as they are."""

    __slots__ = ("_free", "_signature", "positions", "tensors")

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._free: list[int] = []
        self.tensors = self._empty(0)
        """Key and value of each layer in turn  # [1, kv heads, slots, head dim]"""
        self.positions = np.zeros(0, dtype=np.int64)

    @property
    def num_slots(self) -> int:
        """Slots in memory, used or not."""
        return len(self.positions)

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def growth_for(self, num_rows: int) -> int:
        """Return how many slots ``reserve`` would add."""
        lacking = num_rows - self.num_free
        if lacking <= 0:
            return 0
        wanted = max(lacking, self.num_slots // 4)
        return -(-wanted // SLOTS_AT_ONCE) * SLOTS_AT_ONCE

    def reserve(self, num_rows: int) -> None:
        """Make sure that so many slots are free."""
        growth = self.growth_for(num_rows)
        if not growth:
            return
        old = self.num_slots
        grown = self._empty(old + growth)
        for tensor, before in zip(grown, self.tensors, strict=True):
            tensor[:, :, :old] = before
        self.tensors = grown
        self.positions = np.concatenate([self.positions, np.zeros(growth, dtype=np.int64)])
        self._free.extend(range(old + growth - 1, old - 1, -1))

    def store(self, positions: Sequence[int], fresh: Sequence[Tensor]) -> list[int]:
        """Keep new rows  # each [kv heads, rows, head dim]; return their slots."""
        self.reserve(len(positions))
        slots = [self._free.pop() for _ in positions]
        in_a_row = slots == list(range(slots[0], slots[0] + len(slots)))
        for tensor, rows in zip(self.tensors, fresh, strict=True):
            if in_a_row:
                tensor[0, :, slots[0] : slots[0] + len(slots)] = rows
            else:
                tensor[0, :, slots] = rows.swapaxes(0, 1)
        self.positions[slots] = positions
        return slots

    def free(self, slots: Iterable[int]) -> None:
        """Forget what slots hold."""
        self._free.extend(slots)

    def gathered(self, slots: Sequence[int]) -> list[Tensor]:
        """Return some slots in order, for graphs that take only whole pasts."""
        return [np.ascontiguousarray(tensor[:, :, list(slots)]) for tensor in self.tensors]

    def _empty(self, num_slots: int) -> list[Tensor]:
        num_tensors, num_heads = len(self._signature.past_names), self._signature.num_kv_heads
        shape = (num_tensors, 1, num_heads, num_slots, self._signature.head_dim)
        # Unused slots are masked, not skipped: they must hold numbers. One area for all tensors is
        # large enough for huge pages.
        return list(np.zeros(shape, dtype=self._signature.kv_dtype))
