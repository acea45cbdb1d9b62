"""Learned step costs come through a restart, and only on the same model and device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import ConfigurationError
from verify_service.cost_state import FILE_NAME, CostState, cost_key, cost_state
from verify_service.engine.cost_table import CostTable
from verify_service.server import load
from verify_service.settings import VerifySettings

KEY = {"model": "one", "device": "cpu"}


def _learned() -> CostTable:
    table = CostTable(64)
    for rows in (1, 8, 32):
        for _ in range(5):
            table.record(rows, 100, 0.01 * rows)
    return table


def test_costs_come_back(tmp_path: Path) -> None:
    CostState(tmp_path, KEY).keep(_learned())
    table = CostTable(64)

    assert CostState(tmp_path, KEY).restore(table)
    assert table.curve(100).tolist() == pytest.approx(_learned().curve(100).tolist())
    assert sorted(tmp_path.iterdir()) == [tmp_path / FILE_NAME]


def test_first_start_has_nothing_to_restore(tmp_path: Path) -> None:
    assert not CostState(tmp_path, KEY).restore(CostTable(8))


def test_costs_of_another_model_are_refused_and_replaced(tmp_path: Path) -> None:
    """A table of a faster device would make drafting pay where it does not."""
    CostState(tmp_path, KEY | {"model": "other"}).keep(_learned())
    table = CostTable(64)
    state = CostState(tmp_path, KEY)

    assert not state.restore(table)
    assert table.records() == []
    state.keep(_learned())
    assert state.restore(table)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "not json",
        json.dumps({"format": 1, "key": KEY, "records": [[0, 1]]}),
        json.dumps({"format": 1, "key": KEY, "records": [[0, 1, -1.0, 3]]}),
        json.dumps({"format": 1, "key": KEY, "records": [[0, 1, float("nan"), 3]]}),
        json.dumps({"format": 2, "key": KEY, "records": []}),
        json.dumps({"format": 1, "key": None, "records": []}),
    ],
)
def test_damaged_file_is_no_reason_to_fail(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    table = CostTable(8)

    assert not CostState(tmp_path, KEY).restore(table)
    assert table.records() == []


def test_rows_beyond_the_limits_of_now_are_left_out(tmp_path: Path) -> None:
    CostState(tmp_path, KEY).keep(_learned())
    table = CostTable(8)

    assert CostState(tmp_path, KEY).restore(table)
    assert {record.num_rows for record in table.records()} == {1, 8}


def test_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    """B094: the setting has an effect, or says why not."""
    (tmp_path / "file").write_text("")
    settings = VerifySettings(target="table", state=tmp_path / "file" / "folder")

    with pytest.raises(ConfigurationError, match="setting state"):
        load(settings)


def test_verifier_keeps_costs_when_it_stops(tmp_path: Path) -> None:
    settings = VerifySettings(target="table", state=tmp_path / "state")
    loaded = load(settings)

    loaded.when_stopped()

    content = json.loads((tmp_path / "state" / FILE_NAME).read_text())
    assert content["key"] == cost_key(settings, loaded.backend.info)
    assert content["records"]
    restored = cost_state(settings, loaded.backend.info)
    assert restored is not None
    assert restored.restore(CostTable(1000))


def test_key_names_the_device() -> None:
    info = load(VerifySettings(target="table")).backend.info

    key = cost_key(VerifySettings(target="table"), info)
    simulated = cost_key(VerifySettings(target="simulated", simulated_gpu="h200"), info)

    assert key["device"]
    assert "h200" in simulated["device"]
