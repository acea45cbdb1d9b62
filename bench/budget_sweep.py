"""
Bars of issue 3: the budget's goodput beside that of the best fixed tree, found by sweep.

    python -m bench.budget_sweep

In virtual time, so that hundreds of runs compare to the digit: on a roofline of an 8B model on an
H100, and on the step costs that the tiny model has on this machine, recorded at the start.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from bench.bar import Bar
from bench.closed_loop import DRAFTED, PLAIN, ClosedLoop
from bench.engine_run import tiny_engine
from bench.simulated_drafter import SimulatedDrafter, TreeShape
from bench.virtual_line import POOL, VirtualLine
from paceline.cli.terminal import say
from paceline.logs import configure_logging
from verify_service.engine.cost_table import CostTable
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.step_engine import EngineConfig
from verify_service.targets.roofline import GPUS, MODELS, Roofline, Work
from verify_service.targets.simulated import SimulatedTarget
from verify_service.warm_up import warm_up

CONCURRENCIES: Final = (1, 2, 4, 8, 16)
FIXED_SIZES: Final = (1, 2, 4, 8, 16, 32)
MAX_NODES: Final = 32
SETTLING_TOKENS, MEASURED_TOKENS = 500, 1500


@dataclass(frozen=True, slots=True)
class Swept:
    """Goodput at one concurrency, in tokens per second."""

    num_streams: int
    off: float
    adaptive: float
    fixed: dict[int, float]
    """By nodes."""

    @property
    def over_best(self) -> float:
        """The budget's goodput divided by the best fixed setting's, no drafts among them."""
        return self.adaptive / max(self.off, *self.fixed.values())

    @property
    def over_off(self) -> float:
        """The budget's goodput divided by that without drafting."""
        return self.adaptive / self.off

    @property
    def row(self) -> str:
        """One line for reading."""
        fixed = ", ".join(f"{size}: {goodput:.0f}" for size, goodput in self.fixed.items())
        return (
            f"{self.num_streams:>2} streams: off {self.off:.0f} tok/s, budget {self.adaptive:.0f}, "
            f"fixed {fixed}; {self.over_best:.3f} of the best, {self.over_off:.2f} of off"
        )


@dataclass(frozen=True, slots=True)
class RecordedCosts(Roofline):
    """A machine whose steps cost what a table says, whatever the model's figures are."""

    costs: CostTable = field(default_factory=lambda: CostTable(1))

    def seconds(self, work: Work) -> float:
        """Return the recorded cost; rows of a prefill cost no more than others."""
        return self.costs.seconds(work.num_rows, work.num_context_tokens)


def sweep(hardware: Roofline, num_streams: int) -> Swept:
    """Return what each setting serves with as many streams."""
    return Swept(
        num_streams,
        off=_goodput(hardware, num_streams, BudgetMode.ADAPTIVE, MAX_NODES, is_drafted=False),
        adaptive=_goodput(hardware, num_streams, BudgetMode.ADAPTIVE, MAX_NODES),
        fixed={
            size: _goodput(hardware, num_streams, BudgetMode.FIXED, size) for size in FIXED_SIZES
        },
    )


def recorded_tiny_model() -> Roofline:
    """Return this machine's own costs of the tiny model, as its warm-up learns them."""
    engine = tiny_engine(max_running=max(CONCURRENCIES), max_draft_tokens=64)
    warm_up(engine)
    like = _roofline()
    return RecordedCosts(like.model, like.gpu, like.tensor_parallel, costs=engine.costs)


def _roofline() -> Roofline:
    model = MODELS["llama-3.1-8b"]
    return Roofline(model, GPUS["h100"], model.tensor_parallel)


def _goodput(
    hardware: Roofline,
    num_streams: int,
    budget: BudgetMode,
    num_nodes: int,
    *,
    is_drafted: bool = True,
) -> float:
    config = EngineConfig(
        num_blocks=4096,
        max_running=max(CONCURRENCIES),
        max_prefill_rows=512,
        max_draft_tokens=num_nodes,
        budget=budget,
        draft_pools=(POOL,),
    )

    def drafter(target: SimulatedTarget) -> SimulatedDrafter:
        return SimulatedDrafter(target.stream, shape=TreeShape(max_nodes=num_nodes))

    line = VirtualLine(hardware, config, drafter)
    loop = ClosedLoop(line, drafting=DRAFTED if is_drafted else PLAIN)
    loop.resize(num_streams)
    loop.run(SETTLING_TOKENS * max(num_streams // 4, 1))
    return loop.run(MEASURED_TOKENS * max(num_streams // 2, 1)).tokens_per_second


def bars(name: str, swept: Sequence[Swept]) -> list[Bar]:
    """Return the promises about a sweep."""
    return [
        Bar(3, f"{name}: budget / best fixed, least", min(e.over_best for e in swept), 0.95),
        Bar(3, f"{name}: budget / off, least", min(e.over_off for e in swept), 0.98),
    ]


async def measure() -> list[Bar]:
    """Return the budget's share of the best, on both machines."""
    torch.set_num_threads(1)
    configure_logging("bench", "error")
    made: list[Bar] = []
    for name, hardware in (
        ("simulated 8B", _roofline()),
        ("recorded costs", recorded_tiny_model()),
    ):
        swept = []
        for num_streams in CONCURRENCIES:
            swept.append(sweep(hardware, num_streams))
            say(f"{name}, {swept[-1].row}")
        made += bars(name, swept)
    return made


def main() -> None:
    """Print the figures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.3f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
