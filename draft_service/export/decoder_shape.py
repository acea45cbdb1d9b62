"""What a model's configuration means for its graph: sizes, norms, windows. No weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from draft_service.export.rotary import Rotary, rotary_of
from paceline.errors import ConfigurationError
from paceline.model_folder import ModelFolder

Activation = Literal["silu", "gelu_tanh"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_GEMMA3 = ("gemma3_text", "gemma3")
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", *_GEMMA3)

_MAX_LAYERS = 1024
"""Several times what any model has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """How one decoder layer attends."""

    window: int | None
    """It sees this many of the latest tokens, its own included; ``None``: all."""
    rotary: Rotary


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Everything about a decoder but its weights."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_embeddings: int
    context_length: int
    epsilon: float
    """Of the root mean square norms."""
    activation: Activation
    layers: tuple[Layer, ...]
    query_scale: float
    ties_embeddings: bool
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    """What is added to the stored weights of norms."""
    norms_queries_and_keys: bool = False
    norms_outputs: bool = False
    """Attention and feed-forward outputs are normed before they are added (Gemma)."""

    @property
    def window(self) -> int | None:
        """The width of all sliding windows; ``None``: no layer slides."""
        return next((layer.window for layer in self.layers if layer.window is not None), None)


def read_shape(folder: ModelFolder) -> DecoderShape:
    """Return the shape of a folder's model; raises ``ConfigurationError`` if it has no graph."""
    config = _Config(folder)
    model_type = config.text("model_type")
    if model_type not in MODEL_TYPES:
        raise ConfigurationError(
            f"{folder.path} holds a {model_type or 'nameless'} model; "
            f"only {', '.join(MODEL_TYPES)} can be exported"
        )
    config.refuse_what_no_graph_has()
    shape = _llama_shape(config, folder)
    if model_type == "qwen3":
        return replace(shape, norms_queries_and_keys=True)
    return _gemma3_shape(config, shape) if model_type in _GEMMA3 else shape


def _llama_shape(config: _Config, folder: ModelFolder) -> DecoderShape:
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or hidden_size // num_heads
    activation = _ACTIVATIONS.get(config.text("hidden_activation") or config.text("hidden_act"))
    if activation is None:
        raise ConfigurationError(
            f"{folder.path} uses the activation {config.text('hidden_act')!r}; "
            f"only {', '.join(_ACTIVATIONS)} can be exported"
        )
    return DecoderShape(
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.optional_integer("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        num_embeddings=folder.vocab_size,
        context_length=folder.context_length,
        epsilon=config.number("rms_norm_eps", 1e-6),
        activation=activation,
        layers=_layers(config, head_dim),
        query_scale=1 / math.sqrt(head_dim),
        ties_embeddings=bool(config.values.get("tie_word_embeddings", False)),
    )


def _gemma3_shape(config: _Config, shape: DecoderShape) -> DecoderShape:
    return replace(
        shape,
        query_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        ties_embeddings=bool(config.values.get("tie_word_embeddings", True)),
        embedding_scale=math.sqrt(shape.hidden_size),
        norm_offset=1.0,
        norms_queries_and_keys=True,
        norms_outputs=True,
    )


def _layers(config: _Config, head_dim: int) -> tuple[Layer, ...]:
    window = config.optional_integer("sliding_window")
    kinds = _layer_kinds(config)
    return tuple(
        Layer(
            window=window if kind == "sliding_attention" else None,
            rotary=rotary_of(config.values, kind, head_dim),
        )
        for kind in kinds
    )


def _layer_kinds(config: _Config) -> tuple[str, ...]:
    """Return the attention of each layer: as stated, else by the family's older fields."""
    num_layers = config.integer("num_hidden_layers", _MAX_LAYERS)
    stated = config.values.get("layer_types")
    if isinstance(stated, list | tuple) and len(stated) == num_layers:
        return tuple(str(kind) for kind in stated)
    if not config.optional_integer("sliding_window"):
        return ("full_attention",) * num_layers
    return tuple(
        "sliding_attention" if _slides(config, layer) else "full_attention"
        for layer in range(num_layers)
    )


def _slides(config: _Config, layer: int) -> bool:
    model_type = config.text("model_type")
    if model_type in _GEMMA3:
        return bool((layer + 1) % (config.optional_integer("sliding_window_pattern") or 6))
    if model_type.startswith("qwen"):
        first = config.optional_integer("max_window_layers") or 0
        return bool(config.values.get("use_sliding_window")) and layer >= first
    return model_type == "mistral"


@dataclass(frozen=True, slots=True)
class _Config:
    """Typed access to ``config.json``."""

    folder: ModelFolder

    @property
    def values(self) -> Mapping[str, object]:
        return self.folder.config

    def integer(self, key: str, most: int = 2**31 - 1) -> int:
        value = self.optional_integer(key)
        if value is not None and not 1 <= value <= most:
            raise ConfigurationError(
                f"{self.folder.path / 'config.json'} states {key} as {value}; "
                "restore it from the model's source"
            )
        if value is None:
            raise ConfigurationError(
                f"{self.folder.path / 'config.json'} states no {key}; add it to the file"
            )
        return value

    def optional_integer(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) else None

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) else default

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def refuse_what_no_graph_has(self) -> None:
        """Raise ``ConfigurationError`` for what would silently give a wrong graph."""
        for key in ("attn_logit_softcapping", "final_logit_softcapping", "quantization_config"):
            if self.values.get(key):
                raise ConfigurationError(
                    f"{self.folder.path} has {key}, which cannot be exported; "
                    "use a drafter of another family or an unquantized copy"
                )
