"""The ``torch`` target: any transformers decoder over Paceline's own paged, tree-aware KV."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
import torch
from transformers import PreTrainedModel

from paceline.errors import ConfigurationError, EngineFailed
from paceline.huge_pages import use_huge_pages
from verify_service.targets.attention_step import LayerTraits
from verify_service.targets.device_choice import (
    Weights,
    device_named,
    dtype_for,
    packing_for,
    require_memory,
    require_one_rank,
)
from verify_service.targets.fused_layers import fuse_layers
from verify_service.targets.kv_moves import PendingMoves
from verify_service.targets.load_check import LoadCheck, check_tree_attention
from verify_service.targets.model_graphs import (
    Accelerator,
    ModelGraphs,
    accelerator_of,
    graphs_for,
)
from verify_service.targets.model_loading import (
    load_model,
    num_weight_bytes,
    read_info,
    refusing_faults,
)
from verify_service.targets.packed_linear import Packing, padded_rows, wait_until_packed
from verify_service.targets.screened_head import ScreenedHead
from verify_service.targets.target import FlatBatch, TargetInfo
from verify_service.targets.tree_attention import TreeAttention
from verify_service.targets.tree_kernel_inputs import logit_rows_of

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WORTH_HUGE_PAGES = 64 << 20


class TorchTarget:
    """
    A transformers model that verifies trees.

    With weights ``float32`` or ``packed-fp16`` on CPU, a row's logits are the same bits whatever
    else is in the batch, and however its path was split over chunks, steps and trees.

    On CUDA a step is a graph over static buffers: ``forward`` returns before the device is done,
    and moves of KV are made together, on the device, before the next step.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        info: TargetInfo,
        attention: TreeAttention,
        layers: Sequence[LayerTraits],
        packing: Packing | None,
        accelerator: Accelerator | None = None,
        screened_head: ScreenedHead | None = None,
    ) -> None:
        self._model = model
        self._info = info
        self._attention = attention
        self._layers = tuple(layers)
        self._packing = packing
        self._accelerator = accelerator
        self._screened_head = screened_head
        self._graphs: ModelGraphs | None = None
        self._moves = PendingMoves()
        self._allocated = False

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        device: str = "cpu",
        weights: Weights = "auto",
        num_threads: int | None = None,
        accelerator: Accelerator | None = None,
    ) -> TorchTarget:
        """
        Load a folder of safetensors; raises ``ConfigurationError`` where that cannot work.

        ``accelerator``: how steps run, in place of what the device offers.
        """
        chosen_device = device_named(device)
        require_one_rank()
        torch.set_num_threads(num_threads or len(os.sched_getaffinity(0)))
        packing = None if accelerator else packing_for(chosen_device, weights)
        dtype = dtype_for(packing, weights)
        with torch.inference_mode():
            model = load_model(model_dir, dtype)
            if chosen_device.type == "cuda":
                free = torch.cuda.mem_get_info(chosen_device)[0]
                require_memory(_num_bytes(model), free, chosen_device)
            torch.nn.Module.to(model, chosen_device)
            attention = TreeAttention(dtype, chosen_device, exact=packing is not None)
            with refusing_faults(model.config):
                check = check_tree_attention(model, attention)
                fuse_layers(model, attention, packing)
                check.repeat(tolerance=0.05 if dtype == torch.float32 else 0.1)
                screened_head = _screened_head(check)
        if packing is not None:
            log.info("output_head_ready", is_screened=screened_head is not None)
        if chosen_device.type == "cpu" and num_weight_bytes(model_dir) >= _WORTH_HUGE_PAGES:
            wait_until_packed(model)
            use_huge_pages()
        info = read_info(model_dir, model.config)
        accelerator = accelerator or accelerator_of(chosen_device, check.traits)
        return cls(model, info, attention, check.traits, packing, accelerator, screened_head)

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._info

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """
        Create the KV cache, and the graphs where there are any; once, before ``forward``.

        Raises ``ConfigurationError`` where the device has not enough memory for them.
        """
        if self._allocated:
            raise EngineFailed("the KV cache of the target is allocated already")
        shapes = [each.shape for each in self._layers]
        try:
            with self._on_device():
                self._attention.allocate(shapes, num_blocks, block_size)
                if self._accelerator is not None:
                    self._graphs = graphs_for(
                        self._model, self._info, self._attention, self._layers, self._accelerator
                    )
        except torch.OutOfMemoryError:
            raise ConfigurationError(
                f"setting num_kv_blocks: {num_blocks} blocks of {block_size} tokens do not fit "
                f"into the memory of {self._attention.device}; set fewer, or lower max_running"
            ) from None
        self._allocated = True

    @torch.inference_mode()
    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """
        Store the KV of every row and return float32 logits  # [num_logit_rows, vocab_size].

        They are valid until the next call.
        """
        with self._on_device():
            self._make_moves()
            logits = self._graphs.forward(batch) if self._graphs else None
            return self._without_graph(batch) if logits is None else logits

    @torch.inference_mode()
    def best_tokens(self, batch: FlatBatch) -> list[int | None] | None:
        """
        Do as ``forward`` does, and return the id with the largest logit  # [num_logit_rows].

        None at all, with nothing done, where ``forward`` has to be asked.
        """
        if self._screened_head is None:
            return None
        hidden = self._model.base_model(**self._inputs(batch)).last_hidden_state[0]
        rows = hidden[logit_rows_of(batch)]
        return self._screened_head.best(rows, self._info.num_token_ids)

    @torch.inference_mode()
    def move_kv(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy the KV of slots ``sources`` to ``destinations``, as if all were read first."""
        if not sources:
            return
        if self._graphs is None:
            self._attention.cache.move(sources, destinations)
        elif not self._moves.add(sources, destinations):
            self._make_moves()
            self._moves.add(sources, destinations)

    def _make_moves(self) -> None:
        sources, destinations = self._moves.take()
        if sources:
            self._attention.cache.move(sources, destinations)

    def _without_graph(self, batch: FlatBatch) -> torch.Tensor:
        inputs, wanted = self._inputs(batch), logit_rows_of(batch)
        if not wanted:
            self._model.base_model(**inputs)
            return torch.empty((0, self._info.vocab_size), device=self._attention.device)
        logits: torch.Tensor = self._model(**inputs, logits_to_keep=self._padded(wanted)).logits
        return logits[0, : len(wanted)].float()

    def _inputs(self, batch: FlatBatch) -> dict[str, torch.Tensor | bool]:
        """Prepare attention for a batch, and return what the model is to be called with."""
        self._attention.begin(batch)
        token_ids = self._padded(_flat(span.token_ids for span in batch.spans))
        positions = self._padded(_flat(span.positions for span in batch.spans))
        return {"input_ids": token_ids[None], "position_ids": positions[None], "use_cache": False}

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        """Make the device this thread's own: Triton and graphs go by that."""
        device = self._attention.device
        return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()

    def _padded(self, values: list[int]) -> torch.Tensor:
        """Repeat the last value up to a row count at which all rows are computed alike."""
        if self._packing is not None:
            wanted = padded_rows(len(values), self._packing)
            values = values + values[-1:] * (wanted - len(values))
        return torch.tensor(values, dtype=torch.int64, device=self._attention.device)


def _flat(lists: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def _screened_head(check: LoadCheck) -> ScreenedHead | None:
    head = check.model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
    return head if isinstance(head, ScreenedHead) and check.head_has_the_last_word() else None


def _num_bytes(model: PreTrainedModel) -> int:
    return sum(each.numel() * each.element_size() for each in model.parameters())
