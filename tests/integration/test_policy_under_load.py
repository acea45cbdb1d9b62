"""The gateway's policy and the engine's budget together, on a simulated 70B in virtual time."""

from __future__ import annotations

import pytest

from bench.closed_loop import DRAFTED, PLAIN, ClosedLoop, Measured
from bench.flip import COMPARED_STEPS, PolicyLoop, code_line, run
from bench.load_curve import Mode, Point, bars, chart, roofline, row, virtual_line
from verify_service.engine.draft_selection import BudgetMode


def test_policy_follows_a_step_in_load_at_once_and_does_not_oscillate() -> None:
    """B047: drafting comes back with the acceptance that it had."""
    loop = PolicyLoop(code_line())

    trace = run(loop, ((2, 3.0), (40, 3.0), (2, 5.0)))

    up, down = trace.starts[1:]
    assert len(loop.flips) == 2
    assert loop.flips[0] - up < 2.0
    assert loop.flips[1] - down < 2.0
    before = trace.acceptance_length(0.3, 0, COMPARED_STEPS)
    assert trace.acceptance_length(loop.flips[1], 3, COMPARED_STEPS) > 0.9 * before


@pytest.mark.parametrize(("num_streams", "least"), [(1, 2.5), (64, 1.1)])
def test_budget_never_loses_to_plain_decoding(num_streams: int, least: float) -> None:
    hardware = roofline("llama-3.3-70b", "h100")
    ratios = []
    for drafting in (PLAIN, DRAFTED):
        loop = ClosedLoop(virtual_line(hardware), drafting=drafting)
        loop.resize(num_streams)
        loop.run(num_streams * 40)
        ratios.append(loop.run(num_streams * 40 + 200).tokens_per_second)

    assert ratios[1] > least * ratios[0]


def test_overconfident_drafters_are_seen_through() -> None:
    loop = ClosedLoop(virtual_line(roofline("llama-3.3-70b", "h100"), overconfidence=4.0))
    plain = ClosedLoop(virtual_line(roofline("llama-3.3-70b", "h100")), drafting=PLAIN)
    for each in (loop, plain):
        each.resize(48)
        each.run(48 * 30)

    ratio = loop.run(48 * 40).tokens_per_second / plain.run(48 * 40).tokens_per_second

    assert ratio > 1.0


def test_runs_are_the_same_every_time() -> None:
    def tokens_per_second() -> float:
        loop = ClosedLoop(virtual_line(roofline("llama-3.1-8b", "h200"), BudgetMode.FIXED))
        loop.resize(3)
        return loop.run(300).tokens_per_second

    assert tokens_per_second() == pytest.approx(tokens_per_second(), rel=1e-6)


def _measured(tokens: int) -> Measured:
    return Measured(1.0, tokens, 10, 10, 0, 0.1)


def test_a_point_makes_a_row_a_chart_and_bars() -> None:
    light = dict(zip(Mode, map(_measured, (100, 300, 310)), strict=True))
    heavy = dict(zip(Mode, map(_measured, (1000, 990, 800)), strict=True))
    points = [Point(2, light), Point(64, heavy)]

    assert row(points[0]).startswith("| 2 | 100 | 300 | 3.00 |")
    assert chart(points, "title").count("<polyline") == len(Mode)
    assert [bar.figure for bar in bars(points)] == pytest.approx([0.99, 3.0, 0.8])
    assert all(bar.met for bar in bars(points))
