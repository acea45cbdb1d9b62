"""The torch target's accelerator path, on the CPU: recorded graphs and a kernel of one's choice."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.recorded_graphs import RecordingGraphs
from verify_service.targets.model_graphs import Accelerator
from verify_service.targets.packed_attention import Kernel, reference_kernel
from verify_service.targets.torch_model import TorchTarget


def graphed_target(
    folder: Path, graphs: RecordingGraphs, kernel: Kernel = reference_kernel, *, max_rows: int = 96
) -> TorchTarget:
    """Load a model in float32, to be run in graphs that are captured on first use."""
    accelerator = Accelerator(graphs, kernel, num_processors=8, max_rows=max_rows, is_lazy=True)
    return TorchTarget.load(folder, weights="float32", num_threads=1, accelerator=accelerator)
