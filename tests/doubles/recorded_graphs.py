"""A stand-in for CUDA graphs on the CPU: a recorded computation is run again at every replay."""

from __future__ import annotations

from collections.abc import Callable

import torch


class RecordedGraph:
    """Leaves its output where the capture left it, as a graph does."""

    def __init__(self, run: Callable[[], torch.Tensor]) -> None:
        self._run = run
        self.output = run()
        self.num_replays = 0

    def replay(self) -> None:
        """Run again; the addresses that the recording saw are all that may matter."""
        self.num_replays += 1
        self.output.copy_(self._run())


class RecordingGraphs:
    """Keeps every graph that was captured."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []

    def capture(self, run: Callable[[], torch.Tensor]) -> RecordedGraph:
        """Record ``run``, which runs once."""
        graph = RecordedGraph(run)
        self.graphs.append(graph)
        return graph

    @property
    def num_replays(self) -> int:
        """Replays of all graphs."""
        return sum(graph.num_replays for graph in self.graphs)
