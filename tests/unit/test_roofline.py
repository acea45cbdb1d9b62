"""What simulated steps cost: the terms of the roofline, against figures known from practice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_service.targets.roofline import GPUS, MODELS, Roofline, Work

BIG = Roofline(MODELS["llama-3.3-70b"], GPUS["h100"], 4)
SMALL = Roofline(MODELS["llama-3.1-8b"], GPUS["h200"], 1)


def _decode(roofline: Roofline, num_streams: int, context: int = 512, nodes: int = 0) -> float:
    rows = num_streams * (1 + nodes)
    return roofline.seconds(Work(rows, num_streams * context, rows * context))


def test_model_sizes_are_those_of_the_published_models() -> None:
    assert BIG.model.kv_bytes_per_token == 327_680
    assert BIG.model.weight_bytes == pytest.approx(139e9, rel=0.01)
    assert SMALL.model.kv_bytes_per_token == 131_072
    assert SMALL.model.weight_bytes == pytest.approx(15e9, rel=0.01)


def test_single_stream_speeds_are_as_seen_in_practice() -> None:
    """70B FP16 on 4 H100: 50 to 70 tokens/s; 8B on an H200: 140 to 220."""
    assert 50 < 1 / _decode(BIG, 1) < 70
    assert 140 < 1 / _decode(SMALL, 1) < 220


def test_rows_are_nearly_free_until_the_knee_and_dear_beyond() -> None:
    assert _decode(BIG, 1, nodes=31) < 1.1 * _decode(BIG, 1)
    assert _decode(BIG, 64, nodes=31) > 5 * _decode(BIG, 64)


def test_context_costs_its_kv_reads() -> None:
    longer = _decode(BIG, 64, context=8192) - _decode(BIG, 64, context=4096)

    read = 64 * 4096 * 327_680 / (4 * 3.35e12 * 0.8)
    assert longer == pytest.approx(read, rel=0.01)


def test_one_gpu_needs_no_all_reduce() -> None:
    alone = Roofline(MODELS["llama-3.1-8b"], GPUS["h100"], 1, step_seconds=0.0)
    work = Work(8, 0, 0)

    assert alone.seconds(work) == pytest.approx(15.01e9 / (3.35e12 * 0.8), rel=0.01)


def test_kv_room_is_what_the_weights_leave() -> None:
    assert BIG.max_kv_tokens == pytest.approx(448_000, rel=0.02)
    assert Roofline(MODELS["llama-3.3-70b"], GPUS["h100"], 1).max_kv_tokens == 0


@given(rows=st.integers(1, 4000), more=st.integers(0, 500), context=st.integers(0, 500_000))
def test_more_work_never_takes_less_time(rows: int, more: int, context: int) -> None:
    base = BIG.seconds(Work(rows, context, rows * 100))

    assert BIG.seconds(Work(rows + more, context + more, (rows + more) * 100)) >= base
