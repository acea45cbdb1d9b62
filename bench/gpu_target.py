"""The torch target itself, a transformers Llama with random weights, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from bench.gpu_batches import prefill_batches
from bench.gpu_check import Machine
from bench.gpu_decoder import DecoderShape
from verify_service.targets.fused_layers import fuse_layers
from verify_service.targets.load_check import check_tree_attention
from verify_service.targets.model_graphs import Accelerator
from verify_service.targets.target import TargetInfo
from verify_service.targets.torch_model import TorchTarget
from verify_service.targets.tree_attention import TreeAttention

MAX_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target with a prefilled sequence."""

    target: TorchTarget
    step_bytes: int
    """Weight bytes that every step reads."""


def load_target(
    shape: DecoderShape,
    machine: Machine,
    dtype: torch.dtype,
    *,
    context: int,
    max_rows: int,
    num_blocks: int,
) -> LoadedTarget:
    """Return the product's target around a model of this shape, one context stored."""
    with torch.inference_mode():
        model = _random_model(shape, machine.device, dtype)
        attention = TreeAttention(dtype, machine.device, exact=False)
        check = check_tree_attention(model, attention)
        fuse_layers(model, attention, None)
        check.repeat(tolerance=0.1)
    info = TargetInfo("random", "torch", shape.vocab, shape.vocab, MAX_POSITIONS, (), "")
    accelerator = Accelerator(
        machine.graphs, machine.kernel, machine.num_processors, max_rows, is_lazy=True
    )
    target = TorchTarget(model, info, attention, check.traits, None, accelerator)
    target.allocate_kv(num_blocks, shape.block_size)
    for chunk in prefill_batches(1, context, shape.block_size):
        target.forward(chunk)
    embedding = shape.vocab * shape.hidden
    count = sum(each.numel() for each in model.parameters()) - embedding
    return LoadedTarget(target, count * torch.finfo(dtype).bits // 8)


def _random_model(shape: DecoderShape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
    )
    auto: Any = AutoModelForCausalLM
    with device:
        model: PreTrainedModel = auto.from_config(
            config, dtype=dtype, attn_implementation="eager"
        ).eval()
    generator = torch.Generator(device).manual_seed(11)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    return model
