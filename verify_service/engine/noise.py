"""The shared Gumbel noise for tensors; equal, hash for hash, to ``paceline.noise``."""

from __future__ import annotations

import torch

from paceline.noise import GOLDEN, MASK64, MIX1, MIX2, UNIFORM_BITS, stream_key


def token_hashes(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the 64 hash bits of each token id as int64 (two's complement)  # [num_tokens]."""
    return hashes_of(signed_key(seed, position), token_ids)


def signed_key(seed: int, position: int) -> int:
    """Return the key of the noise stream at ``position`` as int64 (two's complement)."""
    return _signed(stream_key(seed, position))


def hashes_of(key: int | torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the hashes of token ids under signed keys, which are broadcast  # int64."""
    value = token_ids.to(torch.int64) * _signed(GOLDEN) + key
    value = (value ^ _shift_right(value, 30)) * _signed(MIX1)
    value = (value ^ _shift_right(value, 27)) * _signed(MIX2)
    return value ^ _shift_right(value, 31)


def gumbel_noise(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise for each token id, float64  # [num_tokens]."""
    return noise_of(signed_key(seed, position), token_ids)


def noise_of(key: int | torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the noise of token ids under signed keys, which are broadcast  # float64."""
    high = _shift_right(hashes_of(key, token_ids), 64 - UNIFORM_BITS)
    uniform = (high.to(torch.float64) + 0.5) * 2.0**-UNIFORM_BITS
    return -torch.log(-torch.log(uniform))


def _signed(value: int) -> int:
    return value - (MASK64 + 1) if value > MASK64 >> 1 else value


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 shifts copy the sign bit; a logical shift clears what came in.
    return (value >> bits) & ((1 << (64 - bits)) - 1)
