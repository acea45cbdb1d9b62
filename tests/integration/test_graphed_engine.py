"""The step engine on the accelerator path, on the CPU: graphs, gathered moves, choices at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.drafted_texts import oracle, texts_of
from tests.doubles.graphed_targets import graphed_target
from tests.doubles.recorded_graphs import RecordingGraphs
from tests.doubles.tiny_models import CONFIGS, save_tiny_model
from verify_service.engine import verification
from verify_service.engine.row_choices import DrawnChoices
from verify_service.targets.torch_model import TorchTarget


def test_text_is_that_of_the_cpu_path_drafted_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B012, B049: trees whose accepted paths are scattered, greedy and sampled side by side."""
    save_tiny_model(CONFIGS["qwen3"], tmp_path)
    plain = texts_of(TorchTarget.load(tmp_path, weights="float32", num_threads=1))
    monkeypatch.setattr(verification, "choose_all", DrawnChoices)
    graphs = [RecordingGraphs(), RecordingGraphs()]

    undrafted = texts_of(graphed_target(tmp_path, graphs[0]))
    drafted = texts_of(graphed_target(tmp_path, graphs[1]), oracle(plain))

    assert undrafted == plain
    assert drafted == plain
    assert 0 < graphs[1].num_replays < graphs[0].num_replays / 2
