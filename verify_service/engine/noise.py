"""The shared Gumbel noise for tensors; equal, hash for hash, to ``paceline.noise``."""

from __future__ import annotations

import torch

from paceline.noise import GOLDEN, MASK64, MIX1, MIX2, UNIFORM_BITS, stream_key


def token_hashes(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the 64 hash bits of each token id as int64 (two's complement)  # [num_tokens]."""
    value = token_ids.to(torch.int64) * _signed(GOLDEN) + _signed(stream_key(seed, position))
    value = (value ^ _shift_right(value, 30)) * _signed(MIX1)
    value = (value ^ _shift_right(value, 27)) * _signed(MIX2)
    return value ^ _shift_right(value, 31)


def gumbel_noise(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise for each token id, float64  # [num_tokens]."""
    high = _shift_right(token_hashes(seed, position, token_ids), 64 - UNIFORM_BITS)
    uniform = (high.to(torch.float64) + 0.5) * 2.0**-UNIFORM_BITS
    return -torch.log(-torch.log(uniform))


def _signed(value: int) -> int:
    return value - (MASK64 + 1) if value > MASK64 >> 1 else value


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 shifts copy the sign bit; a logical shift clears what came in.
    return (value >> bits) & ((1 << (64 - bits)) - 1)
