from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import bars, demo, wire
from bench.bar import Bar
from bench.comparison import Comparison, Run, compare, generate
from bench.prompts import BAR_PROMPTS, LOSSLESS_PROMPTS, BenchPrompt
from paceline.async_client import AsyncClient
from paceline.events import Speculation
from tests.doubles.scripted_gateway import (
    ScriptedGateway,
    Turn,
    delta,
    finished,
    serving,
    started,
    summary,
)

PROMPT = BenchPrompt("hello", "prose", "Hi", 3)
HELLO = Turn(
    (
        started(),
        delta("H", 4),
        delta(
            "",
        ),
        delta("i", 5, 6),
        finished(),
        summary(3),
    )
)


def _run(seconds: float, token_ids: tuple[int, ...] = (1, 2, 3)) -> Run:
    return Run("x", token_ids, 0.5, seconds, len(token_ids) - 1, Speculation())


def test_rate_leaves_out_the_prompt_and_the_first_tokens() -> None:
    run = _run(4.0)

    assert run.tokens_per_second == 0.5
    assert run.total_seconds == 4.5


def test_speedup_is_the_median_of_pairs_so_that_noise_on_both_cancels() -> None:
    plain = (_run(2.0), _run(20.0), _run(2.0))
    drafted = (_run(1.0), _run(10.0), _run(0.1))

    assert Comparison(PROMPT, plain, drafted).speedup == 2.0


def test_one_other_token_is_noticed() -> None:
    assert Comparison(PROMPT, (_run(1),), (_run(1),)).identical_ids
    assert not Comparison(PROMPT, (_run(1),), (_run(1, (1, 2, 4)),)).identical_ids


@pytest.mark.asyncio
async def test_generation_is_measured_from_its_first_tokens() -> None:
    gateway = ScriptedGateway(HELLO)

    async with serving(gateway), AsyncClient(gateway.address) as client:
        run = await generate(client, "Hi", 3, "on", temperature=0.8, seed=5)

    assert run.token_ids == (4, 5, 6)
    assert run.num_decoded == 2
    assert run.speculation.pool == "ngram"
    assert gateway.requests[0].sampling.seed == 5
    assert gateway.requests[0].stopping.ignore_eos


@pytest.mark.asyncio
async def test_comparison_takes_turns_after_one_warm_up_each() -> None:
    gateway = ScriptedGateway(*[HELLO] * 6)

    async with serving(gateway), AsyncClient(gateway.address) as client:
        comparison = await compare(client, PROMPT, 2)

    modes = [request.drafting.mode for request in gateway.requests]
    assert modes[:2] == modes[2:4] == modes[4:]
    assert len(comparison.plain) == len(comparison.drafted) == 2
    assert comparison.mean_acceptance_length == 2.5


def test_demonstration_writes_its_figures_and_fails_on_a_changed_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    same = Comparison(PROMPT, (_run(2.0),), (_run(1.0),))
    changed = Comparison(PROMPT, (_run(2.0),), (_run(1.0, (1, 2, 4)),))

    assert demo.report([same]) == 0
    written = json.loads(Path("build/demo.json").read_text(encoding="utf-8"))
    assert demo.report([same, changed]) == 1

    assert written == {
        "prompts": [
            {
                "name": "hello",
                "category": "prose",
                "tokens_per_second_plain": 1.0,
                "tokens_per_second_drafted": 2.0,
                "speedup": 2.0,
                "mean_acceptance_length": 0.0,
                "identical_ids": True,
            }
        ]
    }
    assert "DIFFERENT" in capsys.readouterr().out


def test_bars_are_written_beside_their_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert bars.report([Bar(2, "speed", 3.25, 3.0)])
    written = json.loads(Path("build/bars.json").read_text(encoding="utf-8"))
    assert not bars.report([Bar(2, "speed", 2.5, 3.0)])

    assert written == [
        {"issue": 2, "bar": "speed", "figure": 3.25, "target": "at least 3", "met": True}
    ]
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (Bar(2, "x", 3.0, 3.0), True),
        (Bar(2, "x", 2.9, 3.0), False),
        (Bar(2, "x", 600, 600, "at most"), True),
        (Bar(2, "x", 601, 600, "at most"), False),
    ],
)
def test_bar_is_met_on_the_right_side_of_its_target(bar: Bar, met: bool) -> None:
    assert bar.met is met


def test_prompts_cover_every_kind_of_work_twice_and_are_distinct() -> None:
    """B104: a repeated prompt would measure a replayed cache."""
    categories = [prompt.category for prompt in BAR_PROMPTS]

    assert all(categories.count(category) == 2 for category in categories)
    assert len({prompt.text for prompt in BAR_PROMPTS}) == len(BAR_PROMPTS)
    assert len(set(LOSSLESS_PROMPTS)) == 20


@pytest.mark.asyncio
async def test_tree_of_64_nodes_is_small_on_the_wire() -> None:
    (bar,) = await wire.measure()

    assert bar.met


def test_a_script_that_breaks_loses_no_figure_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fine() -> list[Bar]:
        return [Bar(2, "speed", 3.25, 3.0)]

    async def broken() -> list[Bar]:
        raise KeyError("late")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bars, "SCRIPTS", {"first": fine, "second": broken, "third": fine})

    assert bars.main([]) == 1

    shown = capsys.readouterr()
    assert shown.out.count("met") == 2
    assert "second could not be measured" in shown.err
    assert "KeyError: 'late'" in shown.err
