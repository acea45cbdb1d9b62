"""The paged KV tensors of a torch target. Which slot belongs to whom is decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Slots: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token stores in one layer, for keys and for values."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class LayerKv:
    """The keys and values of one layer."""

    keys: torch.Tensor  # [num_slots + 1, num_kv_heads, head_dim]
    values: torch.Tensor  # like keys

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Keys and values as arrays over the same memory; only on CPU, in float32."""
        return self.keys.numpy(), self.values.numpy()

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store one row per slot  # keys, values: [num_rows, num_kv_heads, head_dim]."""
        self.keys.index_copy_(0, slots, keys)
        self.values.index_copy_(0, slots, values)


class PagedKv:
    """The cache of all layers; layers of one shape share a tensor."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.spare_slot = num_blocks * block_size
        """Belongs to no block: what is written here is read by nobody."""
        num_slots = num_blocks * block_size + 1
        self._stacks: list[torch.Tensor] = []  # [2, num_layers, num_slots, heads, head_dim] each
        by_layer: dict[int, LayerKv] = {}
        for shape in dict.fromkeys(shapes):
            layers = [layer for layer, other in enumerate(shapes) if other == shape]
            stack = torch.zeros(
                (2, len(layers), num_slots, shape.num_kv_heads, shape.head_dim),
                dtype=dtype,
                device=device,
            )
            self._stacks.append(stack)
            by_layer |= {layer: LayerKv(stack[0, i], stack[1, i]) for i, layer in enumerate(layers)}
        self.layers = tuple(by_layer[layer] for layer in range(len(shapes)))

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """
        Copy slots in all layers, as if all were read before the first is written.

        One copy of the slot numbers to the device, which nobody waits for.
        """
        device = self._stacks[0].device
        slots = torch.tensor(
            [sources, destinations], dtype=torch.int64, pin_memory=device.type == "cuda"
        )
        read, written = slots.to(device, non_blocking=True)
        for stack in self._stacks:
            stack.index_copy_(2, written, stack.index_select(2, read))


def slots_of(block_table: Sequence[int], block_size: int, start: int, stop: int) -> Slots:
    """Return the slots of the tokens with indices ``start`` to ``stop - 1``  # [stop - start]."""
    first_block = start // block_size
    blocks = np.array(block_table[first_block : -(-stop // block_size)], dtype=np.int64)
    slots = (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)
    offset = first_block * block_size
    return slots[start - offset : stop - offset]
