from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    BertGenerationConfig,
    Gemma3TextConfig,
    MambaConfig,
    Qwen3NextConfig,
    T5Config,
)

from paceline.errors import ConfigurationError, EngineFailed
from tests.doubles.target_spans import BLOCK_SIZE, SpanSource, with_logit_rows
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from verify_service.targets.fused_attention import FusedAttention
from verify_service.targets.fused_decoder_layer import FusedDecoderLayer
from verify_service.targets.fused_mlp import FusedMlp
from verify_service.targets.fused_norm import DeviceRmsNorm
from verify_service.targets.model_loading import check_supported
from verify_service.targets.target import CONTEXT, FlatBatch, TargetModel
from verify_service.targets.torch_model import TorchTarget


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(CONFIGS["llama"], tmp_path)
    return tmp_path


@pytest.fixture
def target(folder: Path) -> TorchTarget:
    loaded = TorchTarget.load(folder, num_threads=1)
    loaded.allocate_kv(8, BLOCK_SIZE)
    return loaded


def source() -> SpanSource:
    return SpanSource((5, 2, 3))


def write_tokenizer(folder: Path, vocab: dict[str, int]) -> None:
    contents = {"model": {"vocab": vocab}, "added_tokens": [{"id": len(vocab), "content": "<e>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(contents))


def test_target_model_is_what_the_engine_asks_for(target: TorchTarget) -> None:
    model: TargetModel = target

    assert model.info.engine == "torch"


def test_info_without_tokenizer_counts_every_row_of_the_head(target: TorchTarget) -> None:
    info = target.info

    assert (info.vocab_size, info.num_token_ids) == (VOCAB_SIZE, VOCAB_SIZE)
    assert info.context_length == 256
    assert info.eos_token_ids == (2,)
    assert info.tokenizer_fingerprint == ""


def test_info_tells_known_ids_from_padding_of_the_head(folder: Path) -> None:
    """B113: ids past the tokenizer's are padding rows of the head."""
    write_tokenizer(folder, {f"t{i}": i for i in range(100)})

    info = TorchTarget.load(folder, num_threads=1).info

    assert (info.vocab_size, info.num_token_ids) == (VOCAB_SIZE, 101)
    assert len(info.tokenizer_fingerprint) == 64


def test_generation_config_has_the_last_word_on_eos(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 106]}))

    assert TorchTarget.load(folder, num_threads=1).info.eos_token_ids == (2, 106)


def test_only_wanted_rows_get_logits(target: TorchTarget) -> None:
    every = target.forward(FlatBatch((source().chain([3, 4, 5, 6]),)))

    chosen = target.forward(FlatBatch((with_logit_rows(source().chain([3, 4, 5, 6]), [1, 3]),)))

    assert torch.equal(chosen, every[[1, 3]])
    assert chosen.dtype == torch.float32


def test_prefill_without_wanted_rows_stores_all_the_same(target: TorchTarget) -> None:
    whole = target.forward(FlatBatch((source().chain([3, 4, 5]),)))[-1]
    chunked = source()

    nothing = target.forward(FlatBatch((with_logit_rows(chunked.chain([3, 4]), []),)))

    assert nothing.shape == (0, VOCAB_SIZE)
    assert torch.equal(target.forward(FlatBatch((chunked.chain([5]),)))[0], whole)


def test_moved_kv_is_read_before_any_of_it_is_written(target: TorchTarget) -> None:
    target.forward(FlatBatch((source().chain([3, 4]),)))
    first, second = source().slot(0), source().slot(1)
    layer = target._attention.cache.layers[1]
    before = layer.keys[[first, second]].clone()

    target.move_kv([first, second], [second, first])

    assert torch.equal(layer.keys[[second, first]], before)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_known_shapes_take_the_fused_layers(tmp_path: Path, name: str) -> None:
    save_tiny_model(CONFIGS[name], tmp_path)

    modules = list(TorchTarget.load(tmp_path, num_threads=1)._model.modules())

    assert sum(isinstance(module, FusedAttention) for module in modules) == 3
    assert sum(isinstance(module, FusedMlp) for module in modules) == 3
    shortened = [module for module in modules if "forward" in vars(module)]
    assert len(shortened) == 3
    assert all(isinstance(module.forward, FusedDecoderLayer) for module in shortened)
    assert not [module for module in modules if isinstance(module, torch.nn.Linear)]


@pytest.mark.parametrize(("name", "num_norms"), [("qwen3", 7), ("gemma3", 0)])
def test_layers_are_joined_without_packing_too(tmp_path: Path, name: str, num_norms: int) -> None:
    """Fewer and larger operations; Gemma's norms add 1 to their weights and stay as they are."""
    plain = save_tiny_model(CONFIGS[name], tmp_path)

    model = TorchTarget.load(tmp_path, weights="bfloat16", num_threads=1)._model

    modules = list(model.modules())
    assert sum(isinstance(module, FusedMlp) for module in modules) == 3
    assert sum(isinstance(module, DeviceRmsNorm) for module in modules) == num_norms
    largest = max(parameter.numel() for parameter in plain.parameters())
    assert (
        sum(p.numel() for p in model.parameters())
        <= sum(p.numel() for p in plain.parameters()) + largest
    )


def test_two_threads_give_the_bits_of_one(folder: Path) -> None:
    """B004: a row is never split between threads."""
    tokens = list(range(3, 12))
    logits = []
    for num_threads in (1, 2):
        target = TorchTarget.load(folder, num_threads=num_threads)
        target.allocate_kv(8, BLOCK_SIZE)
        logits.append(target.forward(FlatBatch((source().chain(tokens),))))

    assert torch.equal(logits[0], logits[1])


def test_half_precision_weights_work_within_their_precision(folder: Path) -> None:
    exact = TorchTarget.load(folder, weights="float32", num_threads=1)
    rounded = TorchTarget.load(folder, weights="bfloat16", num_threads=1)
    logits = []
    for target in (exact, rounded):
        target.allocate_kv(8, BLOCK_SIZE)
        tree = source().tree([3, 4, 5, 6], (CONTEXT, 0, 0, 2))
        logits.append(target.forward(FlatBatch((tree,))))

    scale = float(logits[0].abs().max())
    torch.testing.assert_close(logits[1], logits[0], atol=0.1 * scale, rtol=0)


def test_forward_before_allocation_is_our_fault(folder: Path) -> None:
    target = TorchTarget.load(folder, num_threads=1)
    target.allocate_kv(8, BLOCK_SIZE)

    with pytest.raises(EngineFailed, match="already"):
        target.allocate_kv(8, BLOCK_SIZE)


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        TorchTarget.load(folder, **options)  # type: ignore[arg-type]
    assert "\n" not in caught.value.message
    return caught.value.message


def test_missing_folder_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "absent") in refusal(tmp_path / "absent")


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)


def test_broken_config_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")

    assert "config.json" in refusal(folder)


def test_unknown_model_type_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "unheard-of"}))

    assert "config.json is not understood" in refusal(folder)


def test_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    assert "no *.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    ("file", "addition", "method"),
    [
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
        ("config.json", {"compression_config": {}, "quantization_config": {"bits": 4}}, "unknown"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "modelopt"),
    ],
)
def test_quantised_weights_are_refused(
    folder: Path, file: str, addition: dict[str, object], method: str
) -> None:
    """Their scales would be dropped without a word, and every token be wrong."""
    path = folder / file
    stated = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(stated | addition))

    message = refusal(folder)

    assert f"no quantised weights ({method}" in message
    assert "take the BF16/FP16 release, or engine tensorrt-llm" in message


def test_corrupt_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])

    assert "cannot be loaded" in refusal(folder)


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))

    assert "lacks 9 weights" in refusal(folder)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"device": "abacus"}, "device"),
        ({"device": "cuda"}, "device"),
        ({"device": "meta", "weights": "packed-fp16"}, "weights"),
    ],
)
def test_setting_that_cannot_work_is_named(
    folder: Path, options: dict[str, object], setting: str
) -> None:
    assert f"setting {setting}" in refusal(folder, **options)


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (T5Config(), "encoder-decoder"),
        (Qwen3NextConfig(), "linear_attention"),
        (Gemma3TextConfig(use_bidirectional_attention=True), "looks ahead"),
    ],
)
def test_model_that_cannot_be_verified_in_trees_is_refused(config: object, cause: str) -> None:
    """B003: refused with cause and remedy instead of silently wrong text."""
    with pytest.raises(ConfigurationError, match=cause):
        check_supported(config)  # type: ignore[arg-type]


def test_recurrent_model_is_refused_when_it_runs(tmp_path: Path) -> None:
    """B003: its state is in no config field, but its layers never ask for attention."""
    config = MambaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        state_size=4,
        num_hidden_layers=2,
    )
    config.update({"max_position_embeddings": 64})
    save_tiny_model(config, tmp_path)

    assert "decoder-only" in refusal(tmp_path)


def test_model_that_fails_in_a_way_nobody_foresaw_is_refused_in_one_line(tmp_path: Path) -> None:
    """B003: its weights load, but its head is none that can be replaced."""
    config = BertGenerationConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        is_decoder=True,
    )
    save_tiny_model(config, tmp_path)

    message = refusal(tmp_path)

    assert "fails over tree attention" in message
    assert "\n" not in message
