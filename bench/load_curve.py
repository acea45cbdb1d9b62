"""
Goodput over concurrency in virtual time: drafting off, Paceline's budget, and a tree that is always
verified in full.

    python -m bench.load_curve [--model NAME] [--gpu NAME] [--streams N ...] [--svg FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import torch

from bench.bar import Bar
from bench.closed_loop import DRAFTED, PLAIN, ClosedLoop, Measured
from bench.simulated_drafter import SimulatedDrafter
from bench.virtual_line import POOL, VirtualLine
from paceline.cli.line_chart import Line, line_chart
from paceline.cli.terminal import say
from paceline.logs import configure_logging
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.step_engine import EngineConfig
from verify_service.targets.roofline import GPUS, MODELS, Roofline
from verify_service.targets.simulated import SimulatedTarget

CONCURRENCIES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LIGHT: Final = 4
"""Up to this many streams a target is idle enough for drafts to pay in full."""
HEAVY: Final = 64
"""From this many on, a tree that is always verified costs more than it brings."""

MAX_DRAFT_TOKENS: Final = 32
SETTLING_TOKENS, MEASURED_TOKENS = 50, 100
"""Per stream."""
LEAST_TOKENS: Final = 2000


class Mode(Enum):
    """How the line drafts."""

    OFF = "off"
    ADAPTIVE = "paceline"
    NAIVE = "always-on tree"


@dataclass(frozen=True, slots=True)
class Point:
    """All modes at one concurrency."""

    num_streams: int
    measured: dict[Mode, Measured]

    def ratio(self, mode: Mode, *, with_host: bool = False) -> float:
        """Return a mode's goodput divided by that without drafting."""
        if with_host:
            plain = self.measured[Mode.OFF].tokens_per_second_with_host
            return self.measured[mode].tokens_per_second_with_host / plain
        plain = self.measured[Mode.OFF].tokens_per_second
        return self.measured[mode].tokens_per_second / plain


def roofline(model: str, gpu: str) -> Roofline:
    """Return a model on its usual number of GPUs."""
    return Roofline(MODELS[model], GPUS[gpu], MODELS[model].tensor_parallel)


def virtual_line(
    hardware: Roofline, budget: BudgetMode = BudgetMode.ADAPTIVE, *, overconfidence: float = 1.0
) -> VirtualLine:
    """Return an idle engine for 512 streams with a drafter beside it."""
    block_size = 16
    config = EngineConfig(
        num_blocks=min(hardware.max_kv_tokens, 1_000_000) // block_size,
        block_size=block_size,
        max_running=max(CONCURRENCIES),
        max_waiting=2 * max(CONCURRENCIES),
        max_prefill_rows=2048,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        budget=budget,
        draft_pools=(POOL,),
    )

    def drafter(target: SimulatedTarget) -> SimulatedDrafter:
        return SimulatedDrafter(target.stream, overconfidence=overconfidence)

    return VirtualLine(hardware, config, drafter)


def measure_mode(hardware: Roofline, mode: Mode, num_streams: int) -> Measured:
    """Return what a mode does in its steady state."""
    budget = BudgetMode.FIXED if mode is Mode.NAIVE else BudgetMode.ADAPTIVE
    loop = ClosedLoop(
        virtual_line(hardware, budget), drafting=PLAIN if mode is Mode.OFF else DRAFTED
    )
    loop.resize(num_streams)
    loop.run(max(num_streams * SETTLING_TOKENS, LEAST_TOKENS // 2))
    return loop.run(max(num_streams * MEASURED_TOKENS, LEAST_TOKENS))


def measure_curve(hardware: Roofline, concurrencies: Sequence[int]) -> Iterator[Point]:
    """Yield one point after the other."""
    torch.set_num_threads(1)
    for num_streams in concurrencies:
        measured = {mode: measure_mode(hardware, mode, num_streams) for mode in Mode}
        yield Point(num_streams, measured)


async def measure() -> list[Bar]:
    """Return the promises about Llama-3.3-70B on four H100."""
    points: list[Point] = []
    for point in measure_curve(roofline("llama-3.3-70b", "h100"), CONCURRENCIES):
        say(row(point))
        points.append(point)
    return bars(points)


def bars(points: Sequence[Point]) -> list[Bar]:
    """Return the promises about a curve."""
    adaptive = {point.num_streams: point.ratio(Mode.ADAPTIVE) for point in points}
    naive = {point.num_streams: point.ratio(Mode.NAIVE) for point in points}
    light = [ratio for streams, ratio in adaptive.items() if streams <= LIGHT]
    heavy = [ratio for streams, ratio in naive.items() if streams >= HEAVY]
    return [
        Bar(5, "simulated 70B: goodput / off, least of all", min(adaptive.values()), 0.98),
        Bar(5, f"simulated 70B: goodput / off, 1 to {LIGHT} streams", min(light), 2.0),
        Bar(5, f"simulated 70B: naive tree / off, {HEAVY}+", max(heavy), 0.85, "at most"),
    ]


HEADER: Final = (
    "| streams | off tok/s | Paceline tok/s | x off | tokens/step | nodes/step | step ms | "
    "always-on tree tok/s | x off | step ms | engine CPU ms/step: off, Paceline, tree | "
    "x off with that CPU |\n" + "|---" * 12 + "|"
)


def row(point: Point) -> str:
    """Return a row of the table."""
    off, ours, naive = (point.measured[mode] for mode in Mode)
    cells = (
        f"{point.num_streams}",
        f"{off.tokens_per_second:.0f}",
        f"{ours.tokens_per_second:.0f}",
        f"{point.ratio(Mode.ADAPTIVE):.2f}",
        f"{ours.acceptance_length:.2f}",
        f"{ours.nodes_per_sequence:.1f}",
        f"{ours.step_milliseconds:.1f}",
        f"{naive.tokens_per_second:.0f}",
        f"{point.ratio(Mode.NAIVE):.2f}",
        f"{naive.step_milliseconds:.1f}",
        f"{off.host_milliseconds:.1f}, {ours.host_milliseconds:.1f}, {naive.host_milliseconds:.1f}",
        f"{point.ratio(Mode.ADAPTIVE, with_host=True):.2f}",
    )
    return f"| {' | '.join(cells)} |"


def chart(points: Sequence[Point], title: str) -> str:
    """Return the curve as SVG."""
    lines = [
        Line(mode.value, [(point.num_streams, point.ratio(mode)) for point in points])
        for mode in Mode
    ]
    return line_chart(lines, title=title, x_label="streams", y_label="goodput / drafting off")


def main() -> None:
    """Print the table; write chart and figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="llama-3.3-70b")
    parser.add_argument("--gpu", choices=GPUS, default="h100")
    parser.add_argument("--streams", type=int, nargs="+", default=CONCURRENCIES, metavar="N")
    parser.add_argument("--svg", type=Path, help="also draw the curve")
    parser.add_argument("--json", type=Path, help="also write the ratios")
    chosen = parser.parse_args()
    for path in filter(None, (chosen.svg, chosen.json)):
        if not path.parent.is_dir():
            parser.error(f"{path}: there is no such folder")
    configure_logging("bench", "warning")
    hardware = roofline(chosen.model, chosen.gpu)
    points: list[Point] = []
    print(HEADER)
    for point in measure_curve(hardware, chosen.streams):
        print(row(point), flush=True)
        points.append(point)
    if chosen.svg:
        title = f"{chosen.model} on {hardware.tensor_parallel} x {chosen.gpu}, simulated"
        chosen.svg.write_text(chart(points, title), encoding="utf-8")
    if chosen.json:
        ratios = {
            point.num_streams: {mode.value: round(point.ratio(mode), 4) for mode in Mode}
            for point in points
        }
        chosen.json.write_text(json.dumps(ratios, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
