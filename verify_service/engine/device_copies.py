"""Small arrays on their way to a device and back, without waiting for what it does meanwhile."""

from __future__ import annotations

import torch


def sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values of the host on a device; the host goes on at once."""
    if device.type != "cuda" or values.numel() == 0:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class Fetched:
    """Values that a device will have computed, as a list of numbers once they are asked for."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has none
            self._arrived.record(torch.cuda.current_stream(values.device))

    def is_here(self) -> bool:
        """Return whether nobody would have to wait for them."""
        arrived = self._arrived
        return arrived is None or bool(arrived.query())  # type: ignore[no-untyped-call]  # torch

    def numbers(self) -> list[float]:
        """Wait for the values and return them  # [num_values]."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return list(map(float, self._values.tolist()))
