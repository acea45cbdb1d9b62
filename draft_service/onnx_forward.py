"""
One forward pass for rows of several sessions. It knows slots and masks, and no trees or texts.

Sessions never see each other: each has its own rows of the batch, and what is padding for one is
masked for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from draft_service.onnx_kv import KvSlots, Tensor
from draft_service.onnx_runtime import Feeds, Graph
from draft_service.onnx_signature import Signature

Logits = npt.NDArray[np.float32]

_MAX_KEPT_BYTES: Final = 512 << 20
"""Memory for batches that is kept between passes: to get it anew takes longer than to fill it."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """New rows of one session: a chain, or nodes that do not see each other."""

    kv: KvSlots
    token_ids: Sequence[int]
    positions: Sequence[int]
    context_slots: Sequence[int]
    """What every row sees, in order of position."""
    branch_slots: Sequence[Sequence[int]]
    """What each row sees besides, in order; empty for a chain."""
    logit_rows: Sequence[int]
    """Rows whose logits are wanted."""

    @property
    def num_rows(self) -> int:
        """The number of new rows."""
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether each row continues the one before."""
        return not self.branch_slots


@dataclass(frozen=True, slots=True)
class RowResults:
    """What a pass says about a span."""

    logits: Logits
    """[wanted rows, head tokens]"""
    fresh: list[Tensor]
    """Keys and values of the new rows  # each [kv heads, rows, head dim]"""


class Forward(Protocol):
    """A way to run spans through a graph."""

    @property
    def max_branches(self) -> int:
        """How many nodes of one session a pass can take."""
        ...

    def run(self, spans: Sequence[RowSpan]) -> list[RowResults]:
        """Return the results of each span, in order."""
        ...


def forward_for(graph: Graph, signature: Signature) -> Forward:
    """Return the way that fits a graph's signature."""
    return TreeForward(graph, signature) if signature.takes_trees else PathForward(graph, signature)


class _SideBySide:
    """Lays the pasts of several sessions side by side, in memory kept for the next pass."""

    def __init__(self) -> None:
        self._area: Tensor = np.zeros(0)

    def joined(self, spans: Sequence[RowSpan], num_slots: int) -> list[Tensor]:
        """Return key and value of each layer in turn  # [batch, kv heads, slots, head dim]."""
        first = spans[0].kv.tensors
        if len(spans) == 1:
            return first
        _, num_heads, _, dim = first[0].shape
        shape = (len(first), len(spans), num_heads, num_slots, dim)
        size = math.prod(shape)
        area = self._area
        if area.size < size or area.dtype != first[0].dtype:
            area = np.zeros(size, first[0].dtype)
        self._area = area if area.nbytes <= _MAX_KEPT_BYTES else np.zeros(0)
        joined = list(area[:size].reshape(shape))
        for number, tensor in enumerate(joined):
            for index, span in enumerate(spans):
                tensor[index, :, : span.kv.num_slots] = span.kv.tensors[number][0]
                tensor[index, :, span.kv.num_slots :] = 0
        return joined


class TreeForward:
    """For graphs with a mask per row: all spans in one pass, padded to the largest."""

    max_branches = 8

    def __init__(self, graph: Graph, signature: Signature) -> None:
        self._graph = graph
        self._signature = signature
        self._outputs = ["logits", *signature.present_names]
        self._pasts = _SideBySide()

    def run(self, spans: Sequence[RowSpan]) -> list[RowResults]:
        """Return the results of each span, in order."""
        num_rows = max(span.num_rows for span in spans)
        num_slots = max(span.kv.num_slots for span in spans)
        feeds = self._feeds(spans, num_rows, num_slots)
        logits, *present = self._graph.run(self._outputs, feeds)
        results: list[RowResults] = []
        start = 0
        for index, span in enumerate(spans):
            end = start + len(span.logit_rows)
            fresh: list[Tensor] = [tensor[index, :, : span.num_rows] for tensor in present]
            results.append(RowResults(np.asarray(logits[start:end], np.float32), fresh))
            start = end
        return results

    def _feeds(self, spans: Sequence[RowSpan], num_rows: int, num_slots: int) -> Feeds:
        signature = self._signature
        shape = (len(spans), num_rows)
        token_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        seen = np.zeros((*shape, num_slots + num_rows), np.bool_)
        near = np.zeros_like(seen)
        wanted: list[int] = []
        for index, span in enumerate(spans):
            token_ids[index, : span.num_rows] = span.token_ids
            positions[index, : span.num_rows] = span.positions
            rows = seen[index, : span.num_rows]
            _mark_seen(rows, span, num_slots)
            if signature.window is not None:
                distance = _distances(span, num_slots, num_rows)
                near[index, : span.num_rows] = rows & (distance < signature.window)
            wanted.extend(index * num_rows + row for row in span.logit_rows)
        feeds: Feeds = {
            "input_ids": token_ids,
            "position_ids": positions,
            "attention_mask": seen,
            "logit_rows": np.array(wanted, np.int64),
        }
        if signature.window is not None:
            feeds["sliding_attention_mask"] = near
        feeds.update(zip(signature.past_names, self._pasts.joined(spans, num_slots), strict=True))
        return feeds


class PathForward:
    """
    For graphs of the usual signature: one session at a time, its path as the whole past.

    Grouped-query attention kernels read only the number of tokens from a mask, so that neither
    padding nor holes are safe with graphs of unknown origin.
    """

    max_branches = 1

    def __init__(self, graph: Graph, signature: Signature) -> None:
        self._graph = graph
        self._signature = signature
        self._outputs = ["logits", *signature.present_names]

    def run(self, spans: Sequence[RowSpan]) -> list[RowResults]:
        """Return the results of each span, in order."""
        return [self._run(span) for span in spans]

    def _run(self, span: RowSpan) -> RowResults:
        signature = self._signature
        branch = [] if span.is_chain else span.branch_slots[0]
        slots = [*span.context_slots, *branch]
        feeds: Feeds = {"input_ids": np.array([span.token_ids], np.int64)}
        if signature.has_mask:
            feeds["attention_mask"] = np.ones((1, len(slots) + span.num_rows), np.int64)
        if signature.has_positions:
            feeds["position_ids"] = np.array([span.positions], np.int64)
        feeds.update(zip(signature.past_names, span.kv.gathered(slots), strict=True))
        logits, *present = self._graph.run(self._outputs, feeds)
        # Some graphs give logits of the last row only; ours are then those.
        offset = logits.shape[1] - span.num_rows
        wanted = [row + offset for row in span.logit_rows]
        return RowResults(
            np.asarray(logits[0, wanted], np.float32),
            [np.asarray(tensor)[0, :, -span.num_rows :] for tensor in present],
        )


def _mark_seen(rows: npt.NDArray[np.bool_], span: RowSpan, num_slots: int) -> None:
    rows[:, list(span.context_slots)] = True
    fresh = rows[:, num_slots : num_slots + span.num_rows]
    if span.is_chain:
        fresh[:] = np.tri(span.num_rows, dtype=np.bool_)
        return
    fresh[:] = np.eye(span.num_rows, dtype=np.bool_)
    for row, slots in enumerate(span.branch_slots):
        rows[row, list(slots)] = True


def _distances(span: RowSpan, num_slots: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Return how far back each slot and new row lies from each row."""
    places = np.zeros(num_slots + num_rows, np.int64)
    places[: span.kv.num_slots] = span.kv.positions
    places[num_slots : num_slots + span.num_rows] = span.positions
    return np.asarray(np.array(span.positions)[:, None] - places[None, :], np.int64)
