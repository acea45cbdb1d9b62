"""What ``paceline bench`` and ``lossless`` show of what they did before something went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.gateway_command import command
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_verifier import ScriptedVerifier, failing_after

pytestmark = pytest.mark.asyncio


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two prompts."""
    path = tmp_path / "prompts.txt"
    path.write_text("one plain prompt\nanother\n")
    return path


async def test_bench_shows_what_was_measured_before_it_stops(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first number of streams is answered, nothing of the second."""
    verifier.script = failing_after(verifier, 2 + 8)

    code = await command("bench", running, prompts, "--streams", "1", "2", "--requests", "4")

    shown = capsys.readouterr()
    assert code == 2
    assert [line.split()[0] for line in shown.out.splitlines()] == ["streams", "1", "1"]
    assert shown.err.count("\n") == 1


async def test_bench_measures_nothing_for_a_chart_that_has_no_place(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = tmp_path / "missing" / "chart.svg"

    assert await command("bench", running, prompts, "--svg", str(nowhere)) == 2

    assert capsys.readouterr().err == (
        f"paceline: error: --svg {nowhere}: there is no such folder\n"
    )
    assert not verifier.starts


async def test_bench_shows_its_figures_although_the_chart_cannot_be_written(
    running: RunningGateway, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--streams", "1", "--requests", "1", "--svg", str(tmp_path))

    assert await command("bench", running, prompts, *flags) == 2

    shown = capsys.readouterr()
    assert shown.out.startswith("streams")
    assert f"--svg {tmp_path}: Is a directory" in shown.err


async def test_lossless_tells_what_it_compared_before_a_failure(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verifier.script = failing_after(verifier, 3)

    assert await command("lossless", running, prompts, "--streams", "1") == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "stopped early; until then: lossless: 1 answers, 12 tokens, 7 of them from drafts; "
        "every id is the same",
        "paceline: error: scripted",
    ]
