"""Slots of keys and values: what is stored is found again, wherever it went."""

from __future__ import annotations

import numpy as np
import pytest

from draft_service.onnx_kv import KvSlots, Tensor
from draft_service.onnx_signature import Signature

SIGNATURE = Signature(
    past_names=("past_key_values.0.key", "past_key_values.0.value"),
    present_names=("present.0.key", "present.0.value"),
    num_kv_heads=2,
    head_dim=3,
    kv_dtype=np.float32,
    takes_trees=True,
    has_mask=True,
    has_positions=True,
    window=None,
)


def fresh_rows(rng: np.random.Generator, num_rows: int) -> list[Tensor]:
    """Return keys and values of new rows."""
    return [rng.normal(size=(2, num_rows, 3)).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("seed", range(8))
def test_slots_give_back_what_was_stored_while_others_come_and_go(seed: int) -> None:
    """B066: a branch that was dropped leaves holes, and rows that fill them stay whole."""
    rng = np.random.default_rng(seed)
    kv = KvSlots(SIGNATURE)
    held: list[int] = []
    expected: list[Tensor] = [np.zeros((2, 0, 3), np.float32) for _ in range(2)]
    for start in range(0, 200, 10):
        num_rows = int(rng.integers(1, 10))
        fresh = fresh_rows(rng, num_rows)
        held += kv.store(range(start, start + num_rows), fresh)
        expected = [
            np.concatenate([before, rows], axis=1)
            for before, rows in zip(expected, fresh, strict=True)
        ]
        kept = np.flatnonzero(rng.random(len(held)) < 0.7)
        kv.free(slot for row, slot in enumerate(held) if row not in kept)
        held = [held[row] for row in kept]
        expected = [each[:, kept] for each in expected]

    assert len(set(held)) == len(held) == kv.num_slots - kv.num_free
    for found, rows in zip(kv.gathered(held), expected, strict=True):
        assert np.array_equal(found[0], rows)
