"""
Bars of issue 3: the budget's goodput beside that of the best fixed tree, found by sweep.

    python -m bench.budget_sweep

In virtual time, so that hundreds of runs compare to the digit: simulated on a roofline of an 8B
model on an H100 and on the step costs that the tiny model has on this machine, recorded at the
start; then the tiny model itself on those costs.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from bench.bar import Bar
from bench.budget_served import ServedTinyModel, recorded_costs
from bench.budget_settings import CONCURRENCIES, Measure, Setting, bars, sweep
from bench.closed_loop import DRAFTED, PLAIN, ClosedLoop
from bench.simulated_drafter import SimulatedDrafter, TreeShape
from bench.virtual_line import POOL, VirtualLine
from paceline.cli.terminal import say
from paceline.logs import configure_logging
from verify_service.engine.cost_table import CostTable
from verify_service.engine.step_engine import EngineConfig
from verify_service.targets.roofline import GPUS, MODELS, Roofline, Work
from verify_service.targets.simulated import SimulatedTarget

SETTLING_TOKENS, MEASURED_TOKENS = 400, 1200
"""For one stream; more streams emit in proportion to the root of their number."""


@dataclass(frozen=True, slots=True)
class RecordedCosts(Roofline):
    """A machine whose steps cost what a table says, whatever the model's figures are."""

    costs: CostTable = field(default_factory=lambda: CostTable(1))

    def seconds(self, work: Work) -> float:
        """Return the recorded cost; rows of a prefill cost no more than others."""
        return self.costs.seconds(work.num_rows, work.num_context_tokens)


def simulated(hardware: Roofline, num_streams: int) -> Measure:
    """Return the function that measures settings in virtual time, with as many streams."""
    return lambda settings: [_goodput(hardware, num_streams, each) for each in settings]


def _roofline() -> Roofline:
    model = MODELS["llama-3.1-8b"]
    return Roofline(model, GPUS["h100"], model.tensor_parallel)


def _goodput(hardware: Roofline, num_streams: int, setting: Setting) -> float:
    config = EngineConfig(
        num_blocks=4096,
        max_running=max(CONCURRENCIES),
        max_prefill_rows=512,
        max_draft_tokens=setting.max_nodes,
        budget=setting.budget,
        draft_pools=(POOL,),
    )

    def drafter(target: SimulatedTarget) -> SimulatedDrafter:
        return SimulatedDrafter(target.stream, shape=TreeShape(max_nodes=setting.max_nodes))

    line = VirtualLine(hardware, config, drafter)
    loop = ClosedLoop(line, drafting=DRAFTED if setting.is_drafted else PLAIN)
    loop.resize(num_streams)
    scale = num_streams**0.5
    loop.run(round(SETTLING_TOKENS * scale))
    return loop.run(round(MEASURED_TOKENS * scale)).tokens_per_second


async def measure() -> list[Bar]:
    """Return the budget's share of the best: in two simulations and of the tiny model."""
    torch.set_num_threads(1)
    configure_logging("bench", "error")
    costs = recorded_costs()
    machine = _roofline()
    recorded = RecordedCosts(machine.model, machine.gpu, machine.tensor_parallel, costs=costs)
    served = ServedTinyModel(costs)
    return [
        *_swept("simulated 8B", partial(simulated, machine)),
        *_swept("recorded costs", partial(simulated, recorded)),
        *_swept("tiny model", served.measure),
    ]


def _swept(name: str, measure_with: Callable[[int], Measure]) -> list[Bar]:
    swept = []
    for num_streams in CONCURRENCIES:
        swept.append(sweep(num_streams, measure_with(num_streams)))
        say(f"{name}, {swept[-1].row}")
    return bars(name, swept)


def main() -> None:
    """Print the figures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.3f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
