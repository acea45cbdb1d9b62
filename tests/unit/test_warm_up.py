"""The engine before its first request: warm, empty, and without made-up figures."""

from __future__ import annotations

import time

import pytest

from tests.doubles.small_engine import guesses, request, run, small_engine
from verify_service.warm_up import warm_up


def test_warm_engine_knows_costs_and_claims_no_gain() -> None:
    """B103: each shape was run; a made-up gain would mislead gateways from the first report."""
    engine = small_engine(clock=time.monotonic, context_length=512, num_blocks=128)

    warm_up(engine)

    assert engine.num_sequences == 0
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert engine.costs.seconds(1, 10) < 1.0
    assert engine.gain.gain == 1.0
    assert engine.step().load.estimated_gain == 1.0


def test_gain_of_a_cold_engine_is_no_fantasy() -> None:
    """Where no warm-up fitted, the first drafted step has no plain one to compare with."""
    engine = small_engine(clock=time.monotonic)

    run([request(1)], engine, guesses)

    assert 0.5 < engine.gain.gain < 4.0


def test_small_context_warms_up_with_smaller_trees() -> None:
    """A verifier that allows larger trees than fit many times over learns what does fit."""
    engine = small_engine(
        clock=time.monotonic, context_length=256, num_blocks=64, max_draft_tokens=64
    )

    warm_up(engine)

    sizes = {record.num_rows for record in engine.costs.records()}
    assert {1, 2, 4, 8, 16} <= sizes
    assert max(sizes) < 65


@pytest.mark.parametrize("num_blocks", [2, 3, 9])
def test_warm_up_fits_any_cache(num_blocks: int) -> None:
    engine = small_engine(num_blocks=num_blocks, block_size=4)

    warm_up(engine)

    assert engine.blocks.num_free == num_blocks
    assert len(run([request(1, max_tokens=2)], engine)[1].token_ids) == 2
