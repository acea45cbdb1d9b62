"""
An output head that finds the largest logit of a row without computing all of them exactly.

Every product is first computed in bf16, in a fraction of the time, with a bound on how far the
exact one may be from it. Only outputs whose bound reaches the best that is certain are computed
again as ``PackedLinear`` does: one or two panels of thousands. So the result is that of all exact
logits, ties included; what bf16 rounds away decides nothing but the time that it takes.

The bound: with weights ``w`` and row ``a``, and ``w'`` and ``a'`` what bf16 makes of them, the
exact products differ by at most ``|w| |a - a'| + |w - w'| |a'|`` (Cauchy-Schwarz), and adding up
``n`` of them in float32 changes either by at most ``n u / (1 - n u)`` of ``|w| |a|`` or of
``|w'| |a'|`` (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1), which
are the same but for what taking twice the ``u`` makes up for.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from verify_service.targets import matrix_kernel, screening_kernel
from verify_service.targets.packed_linear import (
    PACKERS,
    AnyLinear,
    PackedLinear,
    Packing,
    exact_linear,
    fits_fp16,
)
from verify_service.targets.thread_team import run_on_team

Reals: TypeAlias = npt.NDArray[np.float32]
Indices: TypeAlias = npt.NDArray[np.intp]

_Task = ctypes.c_int64 * screening_kernel.TASK_FIELDS
_PANEL = matrix_kernel.PANEL
_SLACK = 1.01
"""For how norms and bounds are rounded themselves."""
_UNIT = 2.0**-23
"""Twice the unit roundoff of rounding to nearest: how pairs are added is the CPU's affair."""
UNDERFLOW = 1e-18
"""More than all the products together that are too small for a float32."""
_MOST_PANELS = 64
"""Rows with more that may hold their largest logit are computed whole, together."""
_PANELS_AT_ONCE = 256
_WORTH_SCREENING = 1 << 24
"""Weights that take longer than what is done per row beside the products."""


def output_head(
    weight: torch.Tensor, bias: torch.Tensor | None, packing: Packing | None
) -> AnyLinear:
    """Return ``exact_linear``, screened where that pays."""
    is_large = weight.numel() >= _WORTH_SCREENING and weight.shape[1] % 2 == 0
    is_packed = packing == "packed-fp16" and bias is None
    if is_packed and is_large and screening_kernel.multiplies_bf16() and fits_fp16(weight):
        return ScreenedHead(weight)
    return exact_linear(weight, bias, packing)


@dataclass(frozen=True, slots=True)
class PanelNorms:
    """The largest norms of the weights of each panel's outputs."""

    weights: Reals  # [num_panels]
    left_out: Reals  # [num_panels], of what bf16 leaves out of them
    most: Reals  # [2], the largest of either

    def that_may_be_best(self, maxima: Reals, factors: Reals, num_outputs: int) -> Indices:
        """
        Return the panels that may hold the largest product of one row, ascending.

        ``maxima``  # [num_panels]; ``factors`` of the norms make bounds of how far they are off.
        """
        num_whole, num_panels = num_outputs // _PANEL, -(-num_outputs // _PANEL)
        rest = np.arange(num_whole, num_panels)  # whose maximum may not count
        maxima = maxima[:num_whole]
        # Not "where it is larger": where anything is not a number, nothing is ruled out.
        most = float(factors @ self.most) + UNDERFLOW
        floor = maxima.max(initial=-np.inf) - 2.0 * most
        near = np.flatnonzero(~(maxima < floor))
        bounds = factors[0] * self.weights[near] + factors[1] * self.left_out[near] + UNDERFLOW
        certain = (maxima[near] - bounds).max(initial=-np.inf)
        may_be_best = near[~(maxima[near] + bounds < certain)]
        return np.concatenate((may_be_best, rest)) if rest.size else may_be_best


class ScreenedHead(PackedLinear):
    """A linear layer without bias, of an even number of inputs, that also knows its best output."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight, None)
        self._measuring = PACKERS.submit(lambda: _norms_of(self.packed))

    @cached_property
    def norms(self) -> PanelNorms:
        """The norms of all panels; waits for the thread that finds them out."""
        return self._measuring.result()

    def wait_until_packed(self) -> None:
        """Return when other threads have done what the layer needs of them."""
        _ = self.norms

    def best(self, rows: torch.Tensor, num_outputs: int) -> list[int | None]:
        """
        Return which of the first ``num_outputs`` is largest, by row  # [num_rows, in_features].

        The first of equals; None where that one is not finite, or any is NaN. Raises
        ``ValueError`` unless ``rows`` are float32 and as wide as the layer's inputs.
        """
        rows, num_outputs = self.readable(rows), min(num_outputs, self.out_features)
        rough, norms = self.rough_maxima(rows), self.norms
        bests: list[int | None] = [None] * len(rows)
        whole: list[int] = []
        with np.errstate(invalid="ignore"):
            for row, (maxima, factors) in enumerate(zip(*rough, strict=True)):
                panels = norms.that_may_be_best(maxima, factors, num_outputs)
                if panels.size > _MOST_PANELS:
                    whole.append(row)
                else:
                    bests[row] = self._best_of(rows[row : row + 1], panels, num_outputs)
        if whole:
            products = self(rows[whole])[:, :num_outputs].numpy()
            for row, of_row in zip(whole, products, strict=True):
                bests[row] = _largest(of_row)
        return bests

    def _best_of(self, row: torch.Tensor, panels: Indices, num_outputs: int) -> int | None:
        """Return the best output of some panels, ascending, by exact products."""
        products = np.empty(panels.size * _PANEL, np.float32)
        for place, panel in enumerate(panels.tolist()):
            self.multiply(row, products[place * _PANEL :].ctypes.data, panel, panel + 1)
        missing = max(int(panels[-1] + 1) * _PANEL - num_outputs, 0)
        best = _largest(products[: products.size - missing])
        return None if best is None else int(panels[best // _PANEL]) * _PANEL + best % _PANEL

    def rough_maxima(self, rows: torch.Tensor) -> tuple[Reals, Reals]:
        """
        Return the largest product of each panel, and by how much of its norms they may be off.

        [num_rows, in_features] -> [num_rows, num_panels], [num_rows, 2].
        """
        num_rows = rows.shape[0]
        scale = 2.0**screening_kernel.ROW_EXPONENT
        rough = (rows * scale).bfloat16()
        maxima = torch.empty((num_rows, self._num_panels))
        task = _Task(
            0,
            self._num_panels,
            num_rows,
            self.in_features // 2,
            rough.data_ptr(),
            self.packed.data_ptr(),
            maxima.data_ptr(),
        )
        run_on_team(screening_kernel.screen(), ctypes.addressof(task))
        return maxima.numpy(), self._bound_factors(rows, rough.double() / scale)

    def _bound_factors(self, rows: torch.Tensor, rough: torch.Tensor) -> Reals:
        """Return the factors  # [num_rows, 2]; in float64, as squares of small numbers vanish."""
        summed = (self.in_features + 1) * _UNIT
        adding = 2.0 * summed / (1.0 - summed)
        exact = rows.double()
        of_weights = (exact - rough).norm(dim=1) + adding * exact.norm(dim=1)
        factors = torch.stack((of_weights, rough.norm(dim=1)), dim=1) * _SLACK
        return factors.float().numpy()


def _largest(products: Reals) -> int | None:
    best = int(products.argmax())
    return best if math.isfinite(products[best]) else None


def _norms_of(packed: torch.Tensor) -> PanelNorms:
    """Return the norms of fp16 weights  # [num_panels, in_features, PANEL]."""
    starts = range(0, packed.shape[0], _PANELS_AT_ONCE)
    parts = [_norms_of_some(packed[start : start + _PANELS_AT_ONCE]) for start in starts]
    norms = torch.cat(parts, dim=1).numpy()
    return PanelNorms(norms[0], norms[1], norms.max(axis=1))


def _norms_of_some(panels: torch.Tensor) -> torch.Tensor:
    exact = panels.float()
    left_out = exact - _rough(panels)
    return torch.stack([each.norm(dim=1).amax(dim=1) for each in (exact, left_out)])


def _rough(weights: torch.Tensor) -> torch.Tensor:
    """Return what the kernel makes of fp16 weights."""
    kernel = screening_kernel
    signed = ctypes.c_int16(kernel.KEPT_BITS).value
    bits = (weights.view(torch.int16) + kernel.ROUNDED_UP >> kernel.DROPPED_BITS) & signed
    shifted = bits.view(torch.bfloat16).float()
    is_normal = shifted.abs() >= torch.finfo(torch.bfloat16).tiny
    return torch.where(is_normal, shifted, 0.0) * 2.0**kernel.EXPONENT_SHIFT
