"""
Shared Gumbel noise, keyed by (seed, position, token id). The arithmetic that verifier and drafter
must agree on; the verifier's twin for tensors is ``verify_service.engine.noise``.

Keys and single values, without arrays: ``noise_keys``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.noise_keys import GOLDEN as GOLDEN
from paceline.noise_keys import MASK64 as MASK64
from paceline.noise_keys import MAX_NOISE as MAX_NOISE
from paceline.noise_keys import MIX1 as MIX1
from paceline.noise_keys import MIX2 as MIX2
from paceline.noise_keys import UNIFORM_BITS as UNIFORM_BITS
from paceline.noise_keys import derive_seed as derive_seed
from paceline.noise_keys import mix64 as mix64
from paceline.noise_keys import stream_key as stream_key
from paceline.noise_keys import token_noise as token_noise


def token_hashes(seed: int, position: int, token_ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return a 64-bit hash for each token id."""
    value = np.uint64(stream_key(seed, position)) + token_ids.astype(np.uint64) * np.uint64(GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(MIX1)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(MIX2)
    return np.asarray(value ^ (value >> np.uint64(31)), dtype=np.uint64)


def gumbel_noise(seed: int, position: int, token_ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return standard Gumbel noise for each token id; at most ``MAX_NOISE``."""
    high = token_hashes(seed, position, token_ids) >> np.uint64(64 - UNIFORM_BITS)
    uniform = (high.astype(np.float64) + 0.5) * 2.0**-UNIFORM_BITS
    return np.asarray(-np.log(-np.log(uniform)), dtype=np.float64)
