"""How a graph is loaded: threads that wait briefly, weights that are worth huge pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from draft_service.onnx_runtime import limit_spinning, num_graph_bytes


class Options:
    """Remembers what was entered."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Take note of an entry."""
        self.entries[key] = value


@pytest.mark.parametrize(
    ("version", "spins"),
    [("1.20.1", "0"), ("1.31.0", "0"), ("1.32.0", "1"), ("1.32.0+cu12", "1"), ("2.0.0", "1")],
)
def test_threads_spin_only_where_the_time_can_be_limited(version: str, spins: str) -> None:
    """Threads that spin for long take the cores of the verifier beside them."""
    options = Options()

    limit_spinning(options, version)

    assert options.entries["session.intra_op.allow_spinning"] == spins
    assert 0 < int(options.entries["session.intra_op.spin_duration_us"]) <= 50


def test_weights_beside_a_graph_count_as_its_own(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x" * 5)
    (tmp_path / "model.onnx.data").write_bytes(b"x" * 70)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 900)

    assert num_graph_bytes(tmp_path / "model.onnx") == 75
