"""The compiled kernels over rows, for float32 tensors on the CPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from verify_service.targets import row_kernels


def normalised(rows: torch.Tensor, weight: npt.NDArray[np.float32], eps: float) -> torch.Tensor:
    """Return the RMS norm over the last dimension, times ``weight``  # like rows."""
    rows = rows.contiguous()
    result = torch.empty_like(rows)
    width = weight.shape[0]
    row_kernels.normalise(
        rows.numpy().reshape(-1, width), weight, eps, result.numpy().reshape(-1, width)
    )
    return result


def added(
    residual: torch.Tensor,
    change: torch.Tensor,
    norm: tuple[npt.NDArray[np.float32], float],  # weights, [width] or empty for no norm, and eps
) -> torch.Tensor:
    """Return ``residual`` plus ``change``, the latter normalised first  # like residual."""
    width = residual.shape[-1]
    result = torch.empty_like(residual)
    row_kernels.add(
        residual.numpy().reshape(-1, width),
        change.numpy().reshape(-1, width),
        *norm,
        result.numpy().reshape(-1, width),
    )
    return result


def rotated(
    heads: torch.Tensor,  # [num_rows, >= num_rotated, head_dim]
    num_rotated: int,
    norm: npt.NDArray[np.float32],  # [num_rotated, head_dim], or empty for no norm
    eps: float,
    angles: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],  # cosines, sines
) -> torch.Tensor:
    """Return the first heads normalised and rotated  # [num_rows, num_rotated, head_dim]."""
    cos, sin = angles
    result = torch.empty((heads.shape[0], num_rotated, heads.shape[2]))
    row_kernels.rotate(heads.contiguous().numpy(), norm, eps, cos, sin, result.numpy())
    return result


def gated(inner: torch.Tensor, activation: int) -> torch.Tensor:
    """Return ``activation(first half) * second half``  # [..., 2 * width] -> [..., width]."""
    width = inner.shape[-1] // 2
    result = torch.empty((*inner.shape[:-1], width))
    row_kernels.gate(
        inner.contiguous().numpy().reshape(-1, 2 * width),
        activation,
        result.numpy().reshape(-1, width),
    )
    return result
