"""Settings of the draft service, and the drafters that they can name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from draft_service.drafter import Draft, DraftJob, DraftLimits, SessionSpec
from draft_service.ngram import NgramDrafter
from draft_service.registry import create_drafter
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from paceline.settings import load_settings
from paceline.tree import TokenTree

DRAFTERS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "drafters.md"
FOREIGN_MODULE = """
from tests.doubles.recording_drafter import RecordingDrafter


def create(settings):
    return RecordingDrafter()
"""


def _install(folder: Path, name: str, code: str, points: Mapping[str, str]) -> None:
    """Write a distribution of one module, as pip would leave it."""
    (folder / f"{name}.py").write_text(code)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0")
    lines = [f"{drafter} = {place}" for drafter, place in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(("[paceline.drafters]", *lines, "")))


@pytest.fixture
def foreign_drafters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with two drafters, one of which cannot be imported."""
    points = {"foreign": "foreign_drafter:create", "broken": "no_such_module:create"}
    _install(tmp_path, "foreign_drafter", FOREIGN_MODULE, points)
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


def test_the_documented_drafter_runs_as_installed_and_copies_what_came_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = DRAFTERS_PAGE.read_text(encoding="utf-8").partition("## Write your own")[2]
    code, project = (
        written.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "toml")
    )
    points = tomllib.loads(project)["project"]["entry-points"]["paceline.drafters"]
    _install(tmp_path, "repeat_drafter", code, points)
    monkeypatch.syspath_prepend(str(tmp_path))

    drafter = create_drafter(DraftSettings(drafter="repeat"))
    session = drafter.open(SessionSpec(committed_token_ids=(5, 6, 7, 8)))
    limits = DraftLimits(max_draft_tokens=3, max_tree_depth=48)
    nothing = session.propose(limits)
    session.commit(4, (5, 6))
    (copied,) = drafter.propose_batch([DraftJob(session, limits)])

    assert nothing == Draft(4, TokenTree())
    assert copied == Draft(6, TokenTree.chain((7, 8, 5)))


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
