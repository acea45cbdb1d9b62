"""Settings of the draft service, and the drafters that they can name."""

from __future__ import annotations

from pathlib import Path

import pytest

from draft_service.ngram import NgramDrafter
from draft_service.registry import create_drafter
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from paceline.settings import load_settings

FOREIGN_MODULE = """
from tests.doubles.recording_drafter import RecordingDrafter


def create(settings):
    return RecordingDrafter()
"""


@pytest.fixture
def foreign_drafters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with two drafters, one of which cannot be imported."""
    (tmp_path / "foreign_drafter.py").write_text(FOREIGN_MODULE)
    metadata = tmp_path / "foreign_drafter-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-drafter\nVersion: 1.0")
    (metadata / "entry_points.txt").write_text(
        "[paceline.drafters]\nforeign = foreign_drafter:create\nbroken = no_such_module:create\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_default_drafter_needs_no_model() -> None:
    assert isinstance(create_drafter(DraftSettings()), NgramDrafter)


def test_an_unknown_drafter_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown drafter 'oracle'; known: .*ngram"):
        create_drafter(DraftSettings(drafter="oracle"))


@pytest.mark.usefixtures("foreign_drafters")
def test_another_distribution_can_add_a_drafter() -> None:
    drafter = create_drafter(DraftSettings(drafter="foreign"))

    assert drafter.info.kind == "recording"


@pytest.mark.usefixtures("foreign_drafters")
def test_a_drafter_that_cannot_be_imported_says_why() -> None:
    with pytest.raises(ConfigurationError, match="no_such_module"):
        create_drafter(DraftSettings(drafter="broken"))


@pytest.mark.usefixtures("foreign_drafters")
def test_foreign_drafters_are_among_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"known: broken, .*foreign, ngram"):
        create_drafter(DraftSettings(drafter="oracle"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-draft-tokens", "0"], "max_draft_tokens"),
        (["--max-tree-depth", "1000"], "max_tree_depth"),
        (["--ngram-min-probability", "1"], "ngram_min_probability"),
        (["--ngram-min-len", "9", "--ngram-max-len", "3"], "ngram_max_len"),
        (["--idle-session-seconds", "-1"], "idle_session_seconds"),
    ],
)
def test_values_that_cannot_work_are_named(arguments: list[str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        load_settings(DraftSettings, "draft_service", arguments)


def test_the_environment_is_read_with_the_service_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFT_MAX_SESSIONS", "7")

    assert load_settings(DraftSettings, "draft_service", []).max_sessions == 7
