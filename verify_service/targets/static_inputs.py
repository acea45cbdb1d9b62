"""The integers of the step under way, at addresses that a captured graph can rely on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verify_service.targets.target import FlatBatch
from verify_service.targets.tree_kernel import KernelInputs
from verify_service.targets.tree_kernel_inputs import InputLayout, Integers, pack


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Device views of one layout's parts."""

    token_ids: torch.Tensor  # [num_rows]
    slots: torch.Tensor  # [num_rows]
    logit_rows: torch.Tensor  # [num_rows]: the wanted ones first
    kernel: KernelInputs


class StaticInputs:
    """
    One buffer on the host and one on the device, shared by the layouts of all graphs.

    A step costs one copy, which the caller does not wait for.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=self._is_cuda)
        self._integers: Integers = self._host.numpy()
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._copied: torch.cuda.Event | None = None

    def load(
        self, batch: FlatBatch, layout: InputLayout, *, block_size: int, spare_slot: int
    ) -> None:
        """Pack a batch and start copying it; padding rows write to ``spare_slot``."""
        if self._copied is not None:
            self._copied.synchronize()  # what was packed before may still be on its way
        out = self._integers[: layout.size]
        pack(batch, layout, block_size=block_size, spare_slot=spare_slot, out=out)
        used = layout.used(len(batch.spans))
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        if self._is_cuda:
            if self._copied is None:
                self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has none
            self._copied.record()

    def views(self, layout: InputLayout) -> StepInputs:
        """Return where a graph of this layout reads."""
        return views_of(self._device, layout)


def views_of(integers: torch.Tensor, layout: InputLayout) -> StepInputs:
    """Return the parts of packed integers  # integers: [layout.size or more]."""
    part = {name: integers[where] for name, where in layout.slices().items()}
    return StepInputs(
        token_ids=part["token_ids"],
        slots=part["slots"],
        logit_rows=part["logit_rows"],
        kernel=KernelInputs(
            positions=part["positions"],
            ancestors=part["ancestors"],
            tile_span=part["tile_span"],
            tile_first=part["tile_first"],
            tile_rows=part["tile_rows"],
            span_context=part["span_context"],
            span_first_row=part["span_first_row"],
            block_tables=part["block_tables"].view(layout.max_spans, layout.max_blocks),
        ),
    )
