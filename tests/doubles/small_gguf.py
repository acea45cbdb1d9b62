"""Small GGUF files, written from random models."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES = [
    "\u2581",
    *"abcdehlorw",
    "he",
    "ll",
    "hell",
    "hello",
    "\u2581w",
    "or",
    "ld",
    "\u2581wor",
    "\u2581world",
]
TOKENS = [*VOCAB, *PIECES, "<|eot_id|>"]
KINDS = [
    TokenType.UNKNOWN,
    *[TokenType.CONTROL] * 2,
    *[TokenType.BYTE] * 256,
    *[TokenType.NORMAL] * len(PIECES),
    TokenType.CONTROL,
]
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA_NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True)
class Family:
    """An architecture under test."""

    gguf_name: str
    config: Callable[..., PreTrainedConfig]
    norms: dict[str, str]
    permuted: bool = False
    norm_offset: float = 0.0


FAMILIES = {
    "llama": Family("llama", LlamaConfig, LLAMA_NORMS, permuted=True),
    "qwen2": Family("qwen2", Qwen2Config, LLAMA_NORMS),
    "qwen3": Family("qwen3", Qwen3Config, LLAMA_NORMS),
    "gemma3": Family("gemma3", Gemma3TextConfig, GEMMA_NORMS, norm_offset=1.0),
}


def random_model(family: Family, **options: object) -> Any:
    """A model of two layers whose values float16 holds exactly."""
    torch.manual_seed(1)
    config = family.config(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        **options,
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.data = (torch.randn_like(parameter) * 0.2).half().float()
    return model.eval()


def interleaved(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Llama's rotary halves as llama.cpp stores them."""
    halves = values.reshape(num_heads, 2, -1, values.shape[-1])
    return halves.swapaxes(1, 2).reshape(values.shape)


def gguf_tensors(model: Any, family: Family) -> dict[str, npt.NDArray[np.float32]]:
    """The model's weights under llama.cpp's names and in its layout."""
    names = LAYER_NAMES | family.norms
    tensors = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if name.endswith("norm.weight"):
            values = values + np.float32(family.norm_offset)
        if family.permuted and ".q_proj." in name:
            values = interleaved(values, 4)
        if family.permuted and ".k_proj." in name:
            values = interleaved(values, 2)
        if name in GLOBAL_NAMES:
            tensors[GLOBAL_NAMES[name]] = values
            continue
        _, _, layer, rest = name.split(".", 3)
        stem, suffix = rest.rsplit(".", 1)
        tensors[f"blk.{layer}.{names[stem]}.{suffix}"] = values
    return tensors


def write_gguf(
    path: Path,
    family: Family,
    tensors: dict[str, npt.NDArray[np.float32]],
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    extend: Callable[[GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Write the tensors and a small sentencepiece vocabulary."""
    writer = GGUFWriter(path, family.gguf_name)
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(50000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_scores([-float(index) for index in range(len(TOKENS))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    extend(writer)
    for name, values in tensors.items():
        stored = GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
