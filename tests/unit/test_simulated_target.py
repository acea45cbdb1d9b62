"""The simulated target: its time, its tokens, and that the real engine serves them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigurationError
from paceline.settings import load_settings
from verify_service.settings import VerifySettings
from verify_service.targets.registry import load_target
from verify_service.targets.roofline import GPUS, MODELS, Roofline
from verify_service.targets.simulated import (
    VOCAB_SIZE,
    RealClock,
    SimulatedTarget,
    TokenStream,
    VirtualClock,
    work_of,
)
from verify_service.targets.target import FlatBatch, RowSpan

ROOFLINE = Roofline(MODELS["llama-3.3-70b"], GPUS["h100"], 4)
PREFILL = RowSpan((5, 6, 7), (0, 1, 2), (-1, 0, 1), 0, (0,), ())
TREE = RowSpan((9, 1, 2, 3), (40, 41, 41, 42), (-1, 0, 0, 1), 40, (1, 2, 3), (0, 1, 2, 3))


@given(
    seed=st.integers(0, 2**64 - 1),
    rows=st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 2**20)), max_size=20),
)
def test_tokens_one_by_one_are_those_of_all_at_once(seed: int, rows: list[tuple[int, int]]) -> None:
    stream = TokenStream(1000, seed)
    token_ids = np.array([token_id for token_id, _ in rows], np.uint64)
    positions = np.array([position for _, position in rows], np.uint64)

    together = stream.after_all(token_ids, positions).tolist()

    assert together == [stream.after(token_id, position) for token_id, position in rows]


def test_true_tokens_stand_out_and_the_time_passes() -> None:
    clock = VirtualClock()
    target = SimulatedTarget(ROOFLINE, clock)
    batch = FlatBatch((PREFILL, TREE))

    logits = target.forward(batch)

    assert logits.shape == (4, VOCAB_SIZE)
    expected = [
        target.stream.after(token, at)
        for token, at in zip((9, 1, 2, 3), (40, 41, 41, 42), strict=True)
    ]
    assert logits.argmax(dim=1).tolist() == expected
    assert clock.now == pytest.approx(ROOFLINE.seconds(work_of(batch)))


def test_work_counts_rows_context_and_pairs() -> None:
    work = work_of(FlatBatch((PREFILL, TREE)))

    assert (work.num_rows, work.num_context_tokens) == (7, 40)
    assert work.num_pairs == 6 + 4 * 40 + 10


def test_batches_do_not_change_tokens() -> None:
    target = SimulatedTarget(ROOFLINE, VirtualClock())

    alone = target.forward(FlatBatch((TREE,)))

    assert torch.equal(target.forward(FlatBatch((PREFILL, TREE)))[-4:], alone)


def test_real_time_steps_take_as_long_as_the_hardware_would() -> None:
    clock = RealClock()
    target = SimulatedTarget(ROOFLINE, clock)
    target.forward(FlatBatch((TREE,)))

    begun = clock()
    target.forward(FlatBatch((TREE,)))

    assert clock() - begun >= ROOFLINE.seconds(work_of(FlatBatch((TREE,)))) - 1e-6


def test_settings_name_model_and_gpu() -> None:
    flags = [
        "--target",
        "simulated",
        "--simulated-model",
        "llama-3.3-70b",
        "--simulated-gpu",
        "h200",
    ]
    target = load_target(load_settings(VerifySettings, "verify_service", flags))

    assert isinstance(target, SimulatedTarget)
    assert target.roofline.model.name == target.info.name == "llama-3.3-70b"
    assert (target.roofline.gpu.name, target.roofline.tensor_parallel) == ("h200", 4)


def test_unknown_gpu_is_a_usage_error() -> None:
    with pytest.raises(ConfigurationError, match="simulated_gpu"):
        load_settings(VerifySettings, "verify_service", ["--simulated-gpu", "abacus"])
