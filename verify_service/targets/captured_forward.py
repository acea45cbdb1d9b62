"""
Forward passes as CUDA graphs: a batch is packed into static buffers, padded up to a size that was
captured, and replayed. What fits no graph is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch

from verify_service.targets.row_buckets import GraphShape, RowBuckets, num_tiles_of
from verify_service.targets.static_inputs import StaticInputs, StepInputs
from verify_service.targets.target import FlatBatch
from verify_service.targets.tree_kernel_inputs import InputLayout, with_short_spans

MAX_GRAPHS = 48
"""A graph of an 8B model takes some megabytes beside the buffers that all of them share."""
NUM_TRIAL_RUNS = 2
"""Runs before a capture: kernels are compiled and libraries choose theirs meanwhile."""

Compute = Callable[[StepInputs, GraphShape], torch.Tensor]
"""From static inputs to the output of every logit row, at an address that stays."""


class Graph(Protocol):
    """A recorded computation."""

    output: torch.Tensor
    """Overwritten by every replay."""

    def replay(self) -> None:
        """Compute again with what the static inputs hold now; need not wait for the device."""
        ...


class GraphMaker(Protocol):
    """Records computations."""

    def capture(self, run: Callable[[], torch.Tensor]) -> Graph:
        """Record what ``run`` does on the device; it may be run several times."""
        ...


class CudaGraph:
    """A graph and where it leaves its output."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: torch.Tensor) -> None:
        self.output = output
        self._graph = graph

    def replay(self) -> None:
        """Start the graph on the current stream."""
        self._graph.replay()


class CudaGraphs:
    """Records CUDA graphs that share one memory pool; they must be replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, run: Callable[[], torch.Tensor]) -> CudaGraph:
        """Record ``run``; raises ``RuntimeError`` where it waits for the device."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch has none
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(NUM_TRIAL_RUNS):
                run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = self._first.pool() if self._first else None
        # A capture that fails leaves its own stream as the current one; this puts ours back.
        ours = torch.cuda.stream(torch.cuda.current_stream(self._device))
        with ours, torch.cuda.graph(graph, pool=pool):
            output = run()
        self._first = self._first or graph
        return CudaGraph(graph, output)


class PlainRun:
    """A computation that is not recorded but run again; what is left where graphs fail."""

    def __init__(self, run: Callable[[], torch.Tensor]) -> None:
        self.output = torch.empty(0)
        self._run = run

    def replay(self) -> None:
        """Run it."""
        self.output = self._run()


class PlainRuns:
    """Records nothing."""

    def capture(self, run: Callable[[], torch.Tensor]) -> PlainRun:
        """Return ``run`` as it is."""
        return PlainRun(run)


@dataclass(frozen=True, slots=True)
class KvRoom:
    """The KV cache as far as graphs have to know it."""

    block_size: int
    spare_slot: int
    """Takes the KV of rows that only pad a graph; no sequence owns it."""
    max_blocks: int
    """Of one sequence."""


class CapturedForward:
    """The graphs of one model, captured on first use or ahead of it."""

    def __init__(
        self,
        compute: Compute,
        buckets: RowBuckets,
        room: KvRoom,
        graphs: GraphMaker,
        device: torch.device,
        *,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        self._compute = compute
        self._buckets = buckets
        self._room = room
        self._graphs = graphs
        self._max_graphs = max_graphs
        largest = max(self._layout(shape).size for shape in buckets.shapes())
        self._inputs = StaticInputs(largest, device)
        self._captured: dict[GraphShape, Graph] = {}

    @property
    def num_graphs(self) -> int:
        """How many sizes are captured."""
        return len(self._captured)

    def capture_all(self) -> None:
        """Capture as many sizes as may be, the largest first."""
        for shape in islice(self._buckets.shapes(), self._max_graphs):
            self._graph_for(shape)

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """
        Return the output of the wanted rows, valid until the next call; None: no graph fits.

        Returns before the device is done.
        """
        graph = self.prepare(batch)
        if graph is None:
            return None
        graph.replay()
        return graph.output[: batch.num_logit_rows]

    def prepare(self, batch: FlatBatch) -> Graph | None:
        """Put a batch into the static buffers; return the graph that computes it, if one fits."""
        short = with_short_spans(batch)
        shape = None if short is None else self._shape_for(short)
        if short is None or shape is None:
            return None
        layout = self._layout(shape)
        if not layout.fits(short, self._room.block_size):
            return None
        graph = self._graph_for(shape)
        self._load(short, layout)
        return graph

    def _shape_for(self, batch: FlatBatch) -> GraphShape | None:
        """Return the size to run in: the best, or the best that is there when there are enough."""
        num_rows = batch.num_rows
        num_tiles = sum(num_tiles_of(span.num_rows) for span in batch.spans)
        shape = self._buckets.shape_for(num_rows, num_tiles)
        if shape is None or shape in self._captured or self.num_graphs < self._max_graphs:
            return shape
        fitting = (
            each
            for each in self._captured
            if each.num_rows >= num_rows and each.num_tiles >= num_tiles
        )
        return min(fitting, key=lambda each: (each.num_rows, each.num_tiles), default=None)

    def _graph_for(self, shape: GraphShape) -> Graph:
        graph = self._captured.get(shape)
        if graph is None:
            graph = self._captured[shape] = self._capture(shape)
        return graph

    def _capture(self, shape: GraphShape) -> Graph:
        layout = self._layout(shape)
        self._load(FlatBatch(()), layout)
        inputs = self._inputs.views(layout)
        return self._graphs.capture(lambda: self._compute(inputs, shape))

    def _layout(self, shape: GraphShape) -> InputLayout:
        max_spans = min(shape.num_rows, self._buckets.max_spans)
        return InputLayout(shape, max_spans, self._room.max_blocks)

    def _load(self, batch: FlatBatch, layout: InputLayout) -> None:
        room = self._room
        self._inputs.load(batch, layout, block_size=room.block_size, spare_slot=room.spare_slot)
