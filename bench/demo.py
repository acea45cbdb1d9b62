"""``make demo``: a real model, four kinds of work, drafting off and on."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from typing import Any, Final

from bench.comparison import Comparison, compare
from bench.demo_line import BUILD, demo_line
from bench.prompts import DEMO_PROMPTS
from paceline.async_client import AsyncClient
from paceline.cli.terminal import progress, say
from paceline.errors import PacelineError

REPETITIONS: Final = 3


def main() -> int:
    """Run the demonstration; return 1 when drafting changed a token."""
    try:
        comparisons = asyncio.run(_compared())
    except PacelineError as error:
        say(f"demo: error: {error.message}")
        return 1
    except KeyboardInterrupt:
        return 130
    return report(comparisons)


def report(comparisons: list[Comparison]) -> int:
    """Print and write all figures; return 1 when drafting changed a token."""
    _write(comparisons)
    print(_table(comparisons))
    print(f"\nfigures: {BUILD / 'demo.json'}")
    if all(comparison.identical_ids for comparison in comparisons):
        return 0
    say("demo: error: drafting changed a token")
    return 1


async def _compared() -> list[Comparison]:
    comparisons = []
    async with await demo_line() as line, AsyncClient(line.address) as client:
        pool = await line.draft_pool()
        if pool is None or not pool.available:
            say(f"serving without drafts: {pool.detail if pool else 'no draft pool'}")
        for prompt in DEMO_PROMPTS:
            async with progress(f"{prompt.name}: {REPETITIONS} runs with drafting off and on"):
                comparison = await compare(client, prompt, REPETITIONS)
            print(_shown(comparison), flush=True)
            comparisons.append(comparison)
    return comparisons


def _shown(comparison: Comparison) -> str:
    prompt = comparison.prompt
    tail = prompt.text.rstrip("\n").splitlines()[-1]
    text = textwrap.indent(comparison.drafted[0].text, "    | ", lambda line: True)
    return "\n".join(
        (
            f"\n=== {prompt.category}: {prompt.name}",
            f"... {tail}",
            text,
            f"    drafting off {comparison.tokens_per_second_plain:7.1f} tokens/s"
            f"  (whole answer {comparison.plain[0].total_seconds:.1f} s)",
            f"    drafting on  {comparison.tokens_per_second_drafted:7.1f} tokens/s"
            f"  (whole answer {comparison.drafted[0].total_seconds:.1f} s)",
            f"    speed-up {comparison.speedup:.2f}, "
            f"{comparison.mean_acceptance_length:.2f} tokens per step, "
            f"token ids {'identical' if comparison.identical_ids else 'DIFFERENT'}",
        )
    )


def _table(comparisons: list[Comparison]) -> str:
    rows = [f"\n{'work':<16} {'off':>8} {'on':>8} {'speed-up':>9} {'per step':>9}  ids"]
    rows.extend(
        f"{comparison.prompt.category:<16} {comparison.tokens_per_second_plain:>8.1f} "
        f"{comparison.tokens_per_second_drafted:>8.1f} {comparison.speedup:>9.2f} "
        f"{comparison.mean_acceptance_length:>9.2f}  "
        f"{'identical' if comparison.identical_ids else 'DIFFERENT'}"
        for comparison in comparisons
    )
    return "\n".join(rows)


def _write(comparisons: list[Comparison]) -> None:
    BUILD.mkdir(exist_ok=True)
    content = {"prompts": [_entry(comparison) for comparison in comparisons]}
    (BUILD / "demo.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _entry(comparison: Comparison) -> dict[str, Any]:
    return {
        "name": comparison.prompt.name,
        "category": comparison.prompt.category,
        "tokens_per_second_plain": round(comparison.tokens_per_second_plain, 2),
        "tokens_per_second_drafted": round(comparison.tokens_per_second_drafted, 2),
        "speedup": round(comparison.speedup, 3),
        "mean_acceptance_length": round(comparison.mean_acceptance_length, 3),
        "identical_ids": comparison.identical_ids,
    }


if __name__ == "__main__":
    sys.exit(main())
