"""Tiny random transformers models in a folder, one of each shape that the torch target serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 131
WINDOW = 6

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(
        **_SIZES, use_sliding_window=True, sliding_window=WINDOW, layer_types=_LAYERS
    ),
    "qwen3": Qwen3Config(**_SIZES, head_dim=16),
    "gemma2": Gemma2Config(
        **_SIZES, head_dim=8, sliding_window=WINDOW, layer_types=_LAYERS, attn_logit_softcapping=2.0
    ),
    "gemma3": Gemma3TextConfig(
        **_SIZES | {"num_key_value_heads": 1},
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=_LAYERS,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def save_tiny_model(config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    """Save a model with seeded weights that fp16 represents, spread enough to tell rows apart."""
    torch.manual_seed(7)
    auto: Any = AutoModelForCausalLM
    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn_like(parameter) * 0.15).half())
    model.save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_text())
    stated["max_position_embeddings"] = config.max_position_embeddings  # GPT-2 names it otherwise
    (folder / "config.json").write_text(json.dumps(stated))
    return model
