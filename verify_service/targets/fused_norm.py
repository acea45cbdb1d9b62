"""RMS norms in the fewest operations."""

from __future__ import annotations

import torch
from torch.nn import functional

from verify_service.targets.row_operations import normalised


class FusedRmsNorm(torch.nn.Module):
    """An RMS norm in one compiled pass over each row."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self.eps = eps
        self.array = self.weight.detach().numpy()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return normalised(rows, self.array, self.eps)


class DeviceRmsNorm(torch.nn.Module):
    """An RMS norm in one operation, which accelerators have as one kernel."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
        self.eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.eps)


def device_norm(original: torch.nn.Module) -> DeviceRmsNorm | None:
    """
    Return the norm that computes what ``original`` does, if it is an RMS norm with plain weights.

    Weights that stand for 1 more than they say are left alone: in half precision the sum is not.
    """
    weight, eps = _norm_of(original)
    if weight is None or eps is None:
        return None
    width = weight.shape[-1]
    sample = torch.linspace(-3.0, 2.0, 5 * width).view(5, width).to(weight.device, weight.dtype)
    candidate = DeviceRmsNorm(weight, eps)
    difference = (candidate(sample) - original(sample)).abs().max()
    is_alike = float(difference) <= 0.02 * float(original(sample).abs().max())
    return candidate if is_alike else None


def _norm_of(original: torch.nn.Module) -> tuple[torch.Tensor | None, float | None]:
    weight = getattr(original, "weight", None)
    eps = getattr(original, "eps", getattr(original, "variance_epsilon", None))
    is_norm = isinstance(weight, torch.Tensor) and isinstance(eps, float)
    return (weight, eps) if is_norm else (None, None)


def fused_norm(original: torch.nn.Module) -> FusedRmsNorm | None:
    """Return the fused norm that computes what ``original`` does, if it is an RMS norm."""
    weight, eps = _norm_of(original)
    if weight is None or eps is None:
        return None
    width = weight.shape[-1]
    sample = torch.linspace(-3.0, 2.0, 5 * width).view(5, width)
    expected = original(sample)
    for candidate in (FusedRmsNorm(weight, eps), FusedRmsNorm(1.0 + weight, eps)):
        if torch.allclose(candidate(sample), expected, rtol=1e-5, atol=1e-6):
            return candidate
    return None
