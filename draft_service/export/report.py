"""
What an export is worth: its size, its speed, and how often it agrees with its source.

The source is run from its unquantized weights in the same runtime, over a text, each token after
the true ones before it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from draft_service.onnx_forward import Forward, RowSpan, forward_for
from draft_service.onnx_kv import KvSlots
from draft_service.onnx_runtime import load_graph

_CHUNK: Final = 32
_TIMED_CONTEXT: Final = 256
_TIMED_STEPS: Final = 15


def top_tokens(
    graph: Path, token_ids: Sequence[int], head_token_ids: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return a graph's best next token after each token of a text."""
    forward, kv = _loaded(graph)
    slots: list[int] = []
    best: list[int] = []
    for start in range(0, len(token_ids), _CHUNK):
        chunk = token_ids[start : start + _CHUNK]
        positions = range(start, start + len(chunk))
        span = RowSpan(kv, chunk, positions, slots, (), range(len(chunk)))
        kv.reserve(len(chunk))
        [result] = forward.run([span])
        slots += kv.store(positions, result.fresh)
        best += result.logits.argmax(axis=1).tolist()
    return head_token_ids[best]


def step_milliseconds(graph: Path) -> float:
    """Return the median time of a step that reads one token, after 256 others."""
    forward, kv = _loaded(graph)
    kv.reserve(_TIMED_CONTEXT)
    empty = [np.zeros((each.shape[1], _TIMED_CONTEXT, each.shape[3])) for each in kv.tensors]
    slots = kv.store(range(_TIMED_CONTEXT), empty)
    span = RowSpan(kv, [1], [_TIMED_CONTEXT], slots, (), (0,))
    seconds = []
    for _ in range(_TIMED_STEPS):
        started = time.perf_counter()
        forward.run([span])
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:]) * 1e3


def _loaded(graph: Path) -> tuple[Forward, KvSlots]:
    loaded, signature = load_graph(graph, "cpu", 0)
    return forward_for(loaded, signature), KvSlots(signature)
