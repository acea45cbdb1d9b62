"""The nearest curve that never falls, in weighted least squares (pool adjacent violators). Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the fit; weights are above 0. Values that never fall are returned as they are."""
    if bool((values[1:] >= values[:-1]).all()):
        return values
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, size = value, weight, 1
        while means and means[-1] > mean:
            above, more = means.pop(), masses.pop()
            mean = (above * more + mean * mass) / (more + mass)
            mass += more
            size += sizes.pop()
        means.append(mean)
        masses.append(mass)
        sizes.append(size)
    return np.repeat(means, sizes)
