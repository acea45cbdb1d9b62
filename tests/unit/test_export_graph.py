"""Exported graphs against transformers: the same logits from the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from draft_service.export.decoder_graph import DecoderPlan, write_decoder
from draft_service.export.decoder_shape import read_shape
from draft_service.export.linear_weights import WeightKind, linear_weights
from draft_service.export.quantization import quantize_blocks, quantize_rows
from draft_service.export.source_weights import SourceWeights
from draft_service.onnx_forward import RowSpan, forward_for
from draft_service.onnx_kv import KvSlots
from draft_service.onnx_runtime import load_graph
from paceline.model_folder import read_model_folder
from tests.doubles.exported_models import TINY
from tests.doubles.tiny_models import CONFIGS, save_tiny_model

NUM_TOKENS = 20
WINDOWED_CHUNKS = ((0, 7), (7, 8), (8, 20))
"""Ranges of rows: a past that grows, single rows, and rows beyond the windows of 6 tokens."""

LLAMA3 = LlamaConfig(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=256,
    pad_token_id=0,
    attention_bias=True,
    mlp_bias=True,
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
)
LINEAR = LlamaConfig(
    **LLAMA3.to_dict()
    | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}
)

FAMILIES: dict[str, PreTrainedConfig] = {
    name: CONFIGS[name] for name in ("llama", "qwen2", "qwen3", "gemma3")
} | {"llama3 rope": LLAMA3, "linear rope": LINEAR}


def exported_logits(
    folder: Path, path: Path, token_ids: list[int], weights: WeightKind = "float32"
) -> npt.NDArray[np.float32]:
    """Return the logits of a text from a folder's export, read in several passes."""
    shape = read_shape(read_model_folder(folder))
    stored = linear_weights(weights)
    write_decoder(DecoderPlan(shape, stored, stored, None), SourceWeights(folder), path)
    graph, signature = load_graph(path, "cpu", 1)
    forward, kv = forward_for(graph, signature), KvSlots(signature)
    slots: list[int] = []
    logits = []
    for start, end in WINDOWED_CHUNKS:
        positions = range(start, end)
        span = RowSpan(kv, token_ids[start:end], positions, slots, (), range(end - start))
        kv.reserve(span.num_rows)
        [result] = forward.run([span])
        slots += kv.store(positions, result.fresh)
        logits.append(result.logits)
    return np.concatenate(logits)


def reference_logits(folder: Path, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """Return transformers' logits."""
    torch.set_num_threads(1)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model(torch.tensor([token_ids])).logits[0].numpy()
    return logits


def some_tokens(vocab_size: int) -> list[int]:
    """Return seeded token ids."""
    ids: list[int] = np.random.default_rng(0).integers(3, vocab_size, NUM_TOKENS).tolist()
    return ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float32_export_gives_transformers_logits(family: str, tmp_path: Path) -> None:
    save_tiny_model(FAMILIES[family], tmp_path)
    token_ids = some_tokens(131)

    ours = exported_logits(tmp_path, tmp_path / "model.onnx", token_ids)

    assert np.abs(ours - reference_logits(tmp_path, token_ids)).max() < 2e-5


@pytest.mark.parametrize(("weights", "bound"), [("float16", 1e-4), ("int8", 0.1), ("int4", 0.8)])
def test_quantized_exports_stay_near_their_source(
    weights: WeightKind, bound: float, tmp_path: Path
) -> None:
    token_ids = some_tokens(1024)
    expected = reference_logits(TINY, token_ids)

    ours = exported_logits(TINY, tmp_path / "model.onnx", token_ids, weights)

    error = np.sqrt(np.mean((ours - expected) ** 2))
    assert error < bound * expected.std()


@pytest.mark.parametrize("num_columns", [32, 48, 128, 33])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_blocks_are_within_half_a_step(bits: Any, num_columns: int) -> None:
    matrix = np.random.default_rng(2).normal(size=(24, num_columns)).astype(np.float32)

    restored = quantize_blocks(matrix, bits).dequantized()

    step = np.ptp(matrix) / (2**bits - 1)
    assert restored.shape == matrix.shape
    assert np.abs(restored - matrix).mean() < 0.5 * step


def test_only_4_bits_have_zero_points() -> None:
    """Kernels take 128 for the zero of bytes when none is given."""
    matrix = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)

    halves, whole = quantize_blocks(matrix, 4), quantize_blocks(matrix, 8)

    assert halves.zero_points is not None
    assert whole.zero_points is None
    assert set(np.abs(whole.values.astype(int) - 128).max(axis=2).ravel()) == {127}


def test_blocks_of_zeros_and_single_signs_are_kept() -> None:
    matrix = np.zeros((3, 32), np.float32)
    matrix[1], matrix[2] = 3.0, np.linspace(-5.0, -4.0, 32)

    restored = quantize_blocks(matrix, 8).dequantized()

    assert np.abs(restored - matrix).max() < 0.02


def test_rows_are_quantized_by_their_own_largest_value() -> None:
    matrix = np.array([[1.0, -2.0], [1e-3, 5e-4], [0.0, 0.0]], np.float32)

    rows = quantize_rows(matrix)

    assert np.allclose(rows.values * rows.scales, matrix, rtol=0.01)
