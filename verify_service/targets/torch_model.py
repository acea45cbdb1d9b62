"""The ``torch`` target: any transformers decoder over Paceline's own paged, tree-aware KV."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from paceline.errors import ConfigurationError, EngineFailed
from verify_service.targets.fused_layers import fuse_layers
from verify_service.targets.kv_cache import LayerShape
from verify_service.targets.load_check import check_tree_attention
from verify_service.targets.model_loading import load_model, read_info
from verify_service.targets.packed_linear import Packing, packing_works, padded_rows
from verify_service.targets.target import FlatBatch, TargetInfo
from verify_service.targets.tree_attention import TreeAttention

Weights = Literal["auto", "float32", "packed-fp16", "bfloat16", "float16"]

_PLAIN_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchTarget:
    """
    A transformers model that verifies trees.

    With weights ``float32`` or ``packed-fp16`` on CPU, a row's logits are the same bits whatever
    else is in the batch, and however its path was split over chunks, steps and trees.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        info: TargetInfo,
        attention: TreeAttention,
        layer_shapes: Sequence[LayerShape],
        packing: Packing | None,
    ) -> None:
        self._model = model
        self._info = info
        self._attention = attention
        self._layer_shapes = tuple(layer_shapes)
        self._packing = packing
        self._allocated = False

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        device: str = "cpu",
        weights: Weights = "auto",
        num_threads: int | None = None,
    ) -> TorchTarget:
        """Load a folder of safetensors; raises ``ConfigurationError`` where that cannot work."""
        chosen_device = _device(device)
        torch.set_num_threads(num_threads or len(os.sched_getaffinity(0)))
        packing = _packing(chosen_device, weights)
        dtype = torch.float32 if packing else _PLAIN_DTYPES.get(weights, torch.bfloat16)
        with torch.inference_mode():
            model = load_model(model_dir, dtype)
            torch.nn.Module.to(model, chosen_device)
            attention = TreeAttention(dtype, chosen_device, exact=packing is not None)
            check = check_tree_attention(model, attention)
            if packing is not None:
                fuse_layers(model, attention, packing)
                check.repeat(tolerance=0.05)
        info = read_info(model_dir, model.config)
        return cls(model, info, attention, check.layer_shapes, packing)

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._info

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Create the KV cache; once, before the first ``forward``."""
        if self._allocated:
            raise EngineFailed("the KV cache of the target is allocated already")
        self._attention.allocate(self._layer_shapes, num_blocks, block_size)
        self._allocated = True

    @torch.inference_mode()
    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Store the KV of every row and return float32 logits  # [num_logit_rows, vocab_size]."""
        self._attention.begin(batch)
        token_ids = self._padded(_flat(span.token_ids for span in batch.spans))
        positions = self._padded(_flat(span.positions for span in batch.spans))
        wanted = _logit_rows(batch)
        if not wanted:
            self._model.base_model(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False
            )
            return torch.empty((0, self._info.vocab_size))
        logits: torch.Tensor = self._model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=self._padded(wanted),
        ).logits
        return logits[0, : len(wanted)].float()

    def move_kv(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy the KV of slots ``sources`` to ``destinations``, as if all were read first."""
        if sources:
            self._attention.cache.move(sources, destinations)

    def _padded(self, values: list[int]) -> torch.Tensor:
        """Repeat the last value up to a row count at which all rows are computed alike."""
        if self._packing is not None:
            wanted = padded_rows(len(values), self._packing)
            values = values + values[-1:] * (wanted - len(values))
        return torch.tensor(values, dtype=torch.int64, device=self._attention.device)


def _flat(lists: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def _logit_rows(batch: FlatBatch) -> list[int]:
    rows: list[int] = []
    first_row = 0
    for span in batch.spans:
        rows += [first_row + row for row in span.logit_rows]
        first_row += span.num_rows
    return rows


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"setting device: {name!r} is none; use cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("setting device: torch finds no CUDA device here; use cpu")
    return device


def _packing(device: torch.device, weights: Weights) -> Packing | None:
    """Return how exact layers hold their weights, or None where nothing is promised bit for bit."""
    if weights == "packed-fp16" and (device.type != "cpu" or not packing_works()):
        raise ConfigurationError(
            f"setting weights: packed-fp16 needs a CPU with FBGEMM, not {device}; use auto"
        )
    if device.type != "cpu" or weights in _PLAIN_DTYPES:
        return None
    if weights == "auto":
        return "packed-fp16" if packing_works() else "float32"
    return "float32" if weights == "float32" else "packed-fp16"
