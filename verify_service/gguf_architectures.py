"""
What a GGUF file's architecture means in transformers' terms: its configuration and tensor names.

No weights are read here except the small table of rope factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.errors import ConfigurationError
from verify_service.gguf_file import GgufFile

ROPE_FACTORS = "rope_freqs.weight"
_OUTPUT = "output.weight"
# llama.cpp, too, takes control tokens of these names for ends of generation.
_END_TOKENS = frozenset({"<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>"})
CONTROL_TOKEN = 3

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _OUTPUT: "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_QUERY_KEY_NORMS = {
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
_QUERY_KEY_VALUE_BIASES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
_SANDWICH_NORMS = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one model family differs from the plain Llama layout."""

    model_type: str
    class_name: str
    extra_names: Mapping[str, str]
    """Block tensors besides, or instead of, Llama's."""
    permutes_queries_and_keys: bool = False
    """The file interleaves the two rotary halves of each head."""
    adds_one_to_norms: bool = False
    """The file's norm weights include the 1 that transformers adds at run time."""


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", {}, permutes_queries_and_keys=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _QUERY_KEY_VALUE_BIASES),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _QUERY_KEY_NORMS),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_QUERY_KEY_NORMS, **_SANDWICH_NORMS},
        adds_one_to_norms=True,
    ),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return the file's model family, or raise ``ConfigurationError`` if it is not supported."""
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        raise ConfigurationError(
            f"{file.path} holds a {file.architecture or 'nameless'} model; from GGUF only "
            f"{', '.join(ARCHITECTURES)} are supported: use the model's safetensors folder instead"
        )
    return architecture


def tensor_names(file: GgufFile) -> dict[str, str]:
    """Return transformers' name for each of the file's tensors; all must be known, none missing."""
    blocks = {**_BLOCK_NAMES, **architecture_of(file).extra_names}
    expected = _GLOBAL_NAMES | {
        f"blk.{layer}.{ours}": f"model.layers.{layer}.{theirs}"
        for layer in range(_Metadata(file).integer("block_count"))
        for ours, theirs in blocks.items()
    }
    unknown = file.tensors.keys() - expected.keys() - {ROPE_FACTORS}
    missing = expected.keys() - file.tensors.keys() - {_OUTPUT}
    if unknown or missing:
        what = f"has the unknown tensor {min(unknown)}" if unknown else f"lacks {min(missing)}"
        raise ConfigurationError(
            f"{file.path} {what} for a {file.architecture} model; use a file made by llama.cpp"
        )
    return {name: expected[name] for name in file.tensors if name in expected}


def model_config(file: GgufFile) -> dict[str, object]:
    """Return the contents of ``config.json``."""
    architecture = architecture_of(file)
    metadata = _Metadata(file)
    num_heads = metadata.integer("attention.head_count")
    hidden_size = metadata.integer("embedding_length")
    head_dim = (
        metadata.optional_integer("attention.key_length")
        or metadata.optional_integer("rope.dimension_count")
        or hidden_size // num_heads
    )
    config: dict[str, object] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": "float16",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.optional_integer("attention.head_count_kv") or num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": _rope_parameters(metadata),
        "tie_word_embeddings": _OUTPUT not in file.tensors,
        **special_token_ids(file),
    }
    if file.architecture == "gemma3":
        config |= _gemma3_config(metadata, head_dim)
    return config


def special_token_ids(file: GgufFile) -> dict[str, object]:
    """Return the begin, end (all of them) and padding ids, as config files spell them."""
    found = {
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_token_ids(file) or None,
        "pad_token_id": file.integer("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _end_token_ids(file: GgufFile) -> list[int]:
    stated = [file.integer(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    kinds = file.numbers("tokenizer.ggml.token_type")
    named = [
        token_id
        for token_id, token in enumerate(file.texts("tokenizer.ggml.tokens"))
        if token in _END_TOKENS and kinds and kinds[token_id] == CONTROL_TOKEN
    ]
    known = [token_id for token_id in stated if token_id is not None]
    return list(dict.fromkeys(known + named))


class _Metadata:
    """The file's metadata under its architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def integer(self, key: str) -> int:
        value = self.optional_integer(key)
        if value is None:
            raise ConfigurationError(
                f"{self.file.path} does not state {self._full(key)}; use a file made by llama.cpp"
            )
        return value

    def optional_integer(self, key: str) -> int | None:
        return self.file.integer(self._full(key))

    def number(self, key: str, default: float) -> float:
        value = self.file.number(self._full(key))
        return default if value is None else value

    def text(self, key: str) -> str | None:
        return self.file.text(self._full(key))

    def _full(self, key: str) -> str:
        return f"{self.file.architecture}.{key}"


def _rope_parameters(metadata: _Metadata) -> dict[str, object]:
    rope: dict[str, object] = {
        "rope_type": "default",
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
    }
    scaling = metadata.text("rope.scaling.type") or "none"
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor", 1.0)}
    elif scaling == "yarn":
        rope |= {
            "rope_type": "yarn",
            "factor": metadata.number("rope.scaling.factor", 1.0),
            "original_max_position_embeddings": metadata.integer(
                "rope.scaling.original_context_length"
            ),
        }
    elif scaling != "none":
        raise ConfigurationError(
            f"{metadata.file.path} scales its rope by {scaling!r}, which is not supported; "
            "use the model's safetensors folder instead"
        )
    if ROPE_FACTORS in metadata.file.tensors:
        rope |= _llama3_rope(metadata.file, float(str(rope["rope_theta"])))
    return rope


def _llama3_rope(file: GgufFile, theta: float) -> dict[str, object]:
    """
    Recover Llama 3.1's rope scaling from the factors that llama.cpp baked into a tensor.

    Only ``factor`` has ever varied; the recovered parameters must give back the tensor.
    """
    stored = np.concatenate([rows.ravel() for rows in file.rows(file.tensors[ROPE_FACTORS])])
    factor, low, high, original = round(float(stored.max()), 4), 1.0, 4.0, 8192
    wavelengths = 2 * math.pi * theta ** (np.arange(len(stored)) / len(stored))
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), stored, rtol=1e-3):
        raise ConfigurationError(
            f"{file.path} has rope factors that are not Llama 3's; "
            "use the model's safetensors folder instead"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _gemma3_config(metadata: _Metadata, head_dim: int) -> dict[str, object]:
    """Gemma 3 alternates local and global attention; only the global rope is long and scaled."""
    num_layers = metadata.integer("block_count")
    # The 27B model alone scales by its width per head; no key says so, only its depth tells.
    is_27b = num_layers == 62
    width_per_head = metadata.integer("embedding_length") // metadata.integer(
        "attention.head_count"
    )
    period = metadata.optional_integer("attention.sliding_window_pattern") or 6
    local_theta = metadata.number("rope.freq_base_swa", 10000.0)
    return {
        "query_pre_attn_scalar": width_per_head if is_27b else head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % period else "full_attention"
            for layer in range(num_layers)
        ],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": local_theta},
            "full_attention": _rope_parameters(metadata),
        },
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 0.0) or None,
    }
