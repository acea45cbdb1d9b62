"""``make bars``: measures what the project promises, each figure beside its target."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from bench import (
    ahead,
    budget,
    budget_sweep,
    drafters,
    failover,
    first_token,
    flip,
    fuzz,
    gateway_cost,
    load_curve,
    losslessness,
    onnx_drafter,
    plain_decoding,
    shared_drafter,
    soak,
    speedups,
    structured,
    suffix,
    wire,
)
from bench.bar import Bar
from bench.demo_line import BUILD
from paceline.cli.terminal import say
from paceline.errors import PacelineError

SCRIPTS: Final[Mapping[str, Callable[[], Awaitable[list[Bar]]]]] = {
    "wire": wire.measure,
    "first-token": first_token.measure,
    "speedups": speedups.measure,
    "losslessness": losslessness.measure,
    "budget": budget.measure,
    "budget-sweep": budget_sweep.measure,
    "fuzz": fuzz.measure,
    "soak": soak.measure,
    "structured": structured.measure,
    "suffix": suffix.measure,
    "load": load_curve.measure,
    "flip": flip.measure,
    "failover": failover.measure,
    "gateway-cost": gateway_cost.measure,
    "plain": plain_decoding.measure,
    "onnx": onnx_drafter.measure,
    "drafters": drafters.measure,
    "ahead": ahead.measure,
    "shared-drafter": shared_drafter.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all bars, or those named; return 1 unless all are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.bars", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCRIPTS))
    names = parser.parse_args(argv).names or list(SCRIPTS)
    unknown = sorted(set(names) - set(SCRIPTS))
    if unknown:
        parser.error(f"there are no bars {unknown[0]!r}; there are {', '.join(SCRIPTS)}")
    bars: list[Bar] = []
    broken = False
    for name in names:
        say(f"==> {name}")
        try:
            found = asyncio.run(_measured(name))
        except Exception as error:
            # The figures of the others stay, whatever this one met.
            broken = True
            told = error.message if isinstance(error, PacelineError) else traceback.format_exc()
            say(f"{name} could not be measured: {told}")
            continue
        bars.extend(found)
        if len(names) > 1:
            say(_table(found))
    all_met = report(bars)
    return 0 if all_met and not broken else 1


def report(bars: list[Bar]) -> bool:
    """Print and write all figures; return whether there are any and all are met."""
    _write(bars)
    print(_table(bars))
    return bool(bars) and all(bar.met for bar in bars)


async def _measured(name: str) -> list[Bar]:
    return await SCRIPTS[name]()


def _table(bars: list[Bar]) -> str:
    width = max((len(bar.bar) for bar in bars), default=0)
    return "\n".join(
        f"{bar.issue:>3}  {bar.bar:<{width}}  {bar.figure:>9.3f}  {bar.shown_target:<14} "
        f"{'met' if bar.met else 'MISSED'}"
        for bar in bars
    )


def _write(bars: list[Bar]) -> None:
    BUILD.mkdir(exist_ok=True)
    content = [
        {
            "issue": bar.issue,
            "bar": bar.bar,
            "figure": round(bar.figure, 4),
            "target": bar.shown_target,
            "met": bar.met,
        }
        for bar in bars
    ]
    (BUILD / "bars.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
