from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.line import Line, LinePlan
from paceline.cli.up import drafting_status
from paceline.events import DraftPool


def _plan(folder: Path, draft: str) -> LinePlan:
    return LinePlan(model=folder, log_folder=folder / "logs", draft=draft)


@pytest.mark.parametrize(
    ("draft", "pool"),
    [("ngram", "ngram"), ("plug", "plug"), ("none", ""), ("drafts.example:50052", "remote")],
)
def test_pool_is_named_for_where_drafts_come_from(draft: str, pool: str, tmp_path: Path) -> None:
    assert _plan(tmp_path, draft).pool == pool


def test_services_are_told_each_others_addresses(tmp_path: Path) -> None:
    line = Line(_plan(tmp_path, "ngram"))

    assert line.draft is not None
    assert f"ngram={line.draft.spec.address}" in line.verifier.spec.arguments
    assert line.verifier.spec.address in line.gateway.spec.arguments
    assert line.address == line.gateway.spec.address


def test_drafter_of_another_distribution_is_left_to_the_draft_service(tmp_path: Path) -> None:
    line = Line(_plan(tmp_path, "plug"))

    assert line.draft is not None
    assert line.draft.spec.arguments == ("--drafter", "plug")


def test_line_without_drafter_names_no_pool(tmp_path: Path) -> None:
    line = Line(_plan(tmp_path, "none"))

    assert line.draft is None
    assert "--pools" not in line.verifier.spec.arguments
    assert "--default-pool" not in line.gateway.spec.arguments


def test_drafter_elsewhere_is_not_started_here(tmp_path: Path) -> None:
    line = Line(_plan(tmp_path, "drafts.example:50052"))

    assert line.draft is None
    assert "remote=drafts.example:50052" in line.verifier.spec.arguments


def test_status_says_that_the_pool_drafts(tmp_path: Path) -> None:
    pool = DraftPool("ngram", available=True, cause="", detail="", drafter="ngram")

    assert drafting_status(_plan(tmp_path, "ngram"), pool) == "drafting: pool ngram (ngram)"


@pytest.mark.parametrize(
    ("draft", "pool", "told"),
    [
        ("none", None, "serving without drafts, as asked"),
        ("ngram", None, "serving without drafts: the gateway knows no pool ngram"),
        (
            "drafts.example:1",
            DraftPool("remote", available=False, cause="unreachable", detail="refused", drafter=""),
            "serving without drafts: the draft service at drafts.example:1 cannot be used "
            "(unreachable: refused); drafts start by themselves once it answers",
        ),
        (
            "drafts.example:1",
            DraftPool("remote", available=False, cause="mismatch", detail="bb, not aa", drafter=""),
            "serving without drafts: the draft service at drafts.example:1 cannot be used "
            "(mismatch: bb, not aa)",
        ),
        (
            "suffix",
            DraftPool(
                "suffix",
                available=False,
                cause="unreachable",
                detail="UNAVAILABLE: the drafter is warming up",
                drafter="",
            ),
            "serving; drafts start once the drafter is ready: the first start of suffix and "
            "composite compiles for about a minute",
        ),
    ],
)
def test_status_without_drafts_says_why(
    draft: str, pool: DraftPool | None, told: str, tmp_path: Path
) -> None:
    assert drafting_status(_plan(tmp_path, draft), pool) == told
