"""
The part of the shared noise (see ``noise``) that needs no arrays: keys, seeds, single values.

The generator is counter-based: two rounds of the splitmix64 finalizer (Steele, Lea, Flood 2014,
"Fast splittable pseudorandom number generators"). ``position`` is the absolute index of the token
being chosen within prompt + output.
"""

from __future__ import annotations

import math

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB

UNIFORM_BITS = 32
MAX_NOISE = -math.log(-math.log1p(-(2.0 ** -(UNIFORM_BITS + 1))))
"""No noise value is larger: a token further than this below the best score cannot win."""


def mix64(value: int) -> int:
    """Return the splitmix64 finalizer of a 64-bit integer."""
    value &= MASK64
    value = ((value ^ (value >> 30)) * MIX1) & MASK64
    value = ((value ^ (value >> 27)) * MIX2) & MASK64
    return value ^ (value >> 31)


def stream_key(seed: int, position: int) -> int:
    """Return the 64-bit key of the noise stream at ``position``."""
    return mix64(mix64(seed + GOLDEN) ^ mix64(position * GOLDEN + MIX1))


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th output of a request; index 0 keeps the seed."""
    return seed & MASK64 if index == 0 else mix64(mix64(seed + MIX2) ^ mix64(index * MIX1))


def token_noise(seed: int, position: int, token_id: int) -> float:
    """Return the noise of one token, as ``gumbel_noise`` would up to rounding."""
    high = mix64(stream_key(seed, position) + token_id * GOLDEN) >> (64 - UNIFORM_BITS)
    return -math.log(-math.log((high + 0.5) * 2.0**-UNIFORM_BITS))
