"""``paceline bench``: a workload against a gateway, first without drafts, then with."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline.async_client import AsyncClient
from paceline.cli.access import access_of, add_access_arguments
from paceline.cli.address import add_address_argument, gateway_address
from paceline.cli.line_chart import Line, line_chart
from paceline.cli.number_flags import (
    MAX_REQUESTS,
    MAX_SEED,
    MAX_STREAMS,
    MAX_UINT32,
    check_seeds,
    whole_number,
)
from paceline.cli.outlook import too_slow
from paceline.cli.prompts import BUILT_IN, named_prompts
from paceline.cli.terminal import progress, say, show
from paceline.cli.workload_run import Run, Workload, run_workload
from paceline.client import DEFAULT_TIMEOUT_SECONDS
from paceline.errors import ConfigurationError, DeadlineExceeded
from paceline.generation_request import DraftingMode, GenerationOptions

HEADER: Final = (
    "streams", "drafts", "tok/s", "x plain", "tok/step", "first ms p50", "p99", "ms/token p50",
    "p99", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """The same requests at the same concurrency, without drafts and with them."""

    plain: Run
    drafted: Run

    @property
    def speedup(self) -> float:
        """Goodput with drafts divided by that without."""
        return self.drafted.tokens_per_second / max(self.plain.tokens_per_second, 1e-9)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the command."""
    add_request_arguments(parser)
    kinds = ("mixed", *BUILT_IN)
    parser.add_argument(
        "--workload", choices=kinds, default="mixed", help="built-in prompts (default: mixed)"
    )
    parser.add_argument(
        "--streams",
        type=whole_number(1, MAX_STREAMS),
        nargs="+",
        default=[1, 4],
        metavar="N",
        help="requests at a time (default: 1 4)",
    )
    parser.add_argument(
        "--requests",
        type=whole_number(1, MAX_REQUESTS),
        default=16,
        metavar="N",
        help="per run (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy"
    )
    parser.add_argument(
        "--draft",
        action="store_true",
        help="use drafts whatever the load, not as the gateway sees fit",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the speed-up")


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of commands that send many requests."""
    add_address_argument(parser)
    parser.add_argument("--model", help="model name, where several are served")
    parser.add_argument("--pool", help="draft pool")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="one prompt per line, as text or JSON"
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1, MAX_UINT32),
        default=128,
        metavar="N",
        help="tokens of each answer (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, MAX_SEED),
        default=1,
        metavar="N",
        help="of the first request (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="for each answer (default: %(default)g)",
    )
    add_access_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and show; return 1 if any request failed; raises ``ConfigurationError`` if all do."""
    check_seeds(options.seed, options.requests)
    options.address = gateway_address(options.address)
    if options.svg and not options.svg.parent.is_dir():
        raise ConfigurationError(f"--svg {options.svg}: there is no such folder")
    pairs: list[Pair] = []
    try:
        asyncio.run(_measure(options, pairs))
    finally:
        # What was measured before an error or Ctrl-C is valid.
        if pairs:
            show(json.dumps(_as_dict(pairs)) + "\n" if options.json else table(pairs))
    if options.svg:
        _draw(options.svg, pairs)
    for run_ in (run_ for pair in pairs for run_ in (pair.plain, pair.drafted)):
        for cause, count in run_.failures.items():
            say(f"{count} requests failed: {cause}")
    return 1 if any(pair.plain.failures or pair.drafted.failures for pair in pairs) else 0


async def _measure(options: argparse.Namespace, pairs: list[Pair]) -> None:
    """Add a pair for each number of streams as it is measured."""
    access = access_of(options)
    workload = Workload(
        named_prompts(options.workload, options.prompts),
        options.requests,
        GenerationOptions(
            model=options.model,
            pool=options.pool,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            ignore_eos=True,
        ),
        options.seed,
        options.timeout,
    )
    with_drafts: DraftingMode = "on" if options.draft else "auto"
    async with AsyncClient(options.address, api_key=access.api_key, tls=access.tls) as client:
        await _warm_up(client, workload, with_drafts)
        for num_streams in options.streams:
            async with progress(f"{options.requests} requests, {num_streams} at a time, twice"):
                plain = await run_workload(client, workload, num_streams, "off")
                drafted = await run_workload(client, workload, num_streams, with_drafts)
            pairs.append(Pair(plain, drafted))


async def _warm_up(client: AsyncClient, workload: Workload, drafting: DraftingMode) -> None:
    """Ask one short question either way, also so that a wrong address or option shows at once."""
    modes: tuple[DraftingMode, ...] = ("off", drafting)
    for mode in modes:
        asked: GenerationOptions = {**workload.options, "max_tokens": 8, "drafting": mode}
        try:
            await client.generate(
                workload.prompts[0].text, timeout=workload.timeout_seconds, **asked
            )
        except DeadlineExceeded as error:
            raise too_slow(error) from None


def table(pairs: Sequence[Pair]) -> str:
    """Return the figures as aligned columns."""
    rows = [HEADER, *(_row(run_, pair) for pair in pairs for run_ in (pair.plain, pair.drafted))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(lines) + "\n"


def _row(run_: Run, pair: Pair) -> tuple[str, ...]:
    figures = _figures(run_)
    ratio = 1.0 if run_ is pair.plain else pair.speedup
    return (
        str(run_.num_streams),
        run_.drafting,
        f"{figures['tokens_per_second']:.1f}",
        f"{ratio:.2f}",
        f"{figures['acceptance_length']:.2f}",
        *(f"{1e3 * figures[name]:.0f}" for name in ("first_seconds_p50", "first_seconds_p99")),
        *(
            f"{1e3 * figures[name]:.1f}"
            for name in ("seconds_per_token_p50", "seconds_per_token_p99")
        ),
        str(run_.failures.total()),
    )


def _figures(run_: Run) -> dict[str, Any]:
    percentiles = {
        f"{figure}_p{round(100 * share)}": run_.percentile(share, figure)
        for figure in ("first_seconds", "seconds_per_token", "total_seconds")
        for share in (0.5, 0.99)
    }
    return {
        "drafting": run_.drafting,
        "num_requests": len(run_.answers),
        "num_failed": run_.failures.total(),
        "num_tokens": sum(answer.num_tokens for answer in run_.answers),
        "seconds": run_.seconds,
        "tokens_per_second": run_.tokens_per_second,
        "acceptance_length": run_.acceptance_length,
        "fallbacks": dict(run_.fallbacks),
        **percentiles,
    }


def _as_dict(pairs: Sequence[Pair]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "num_streams": pair.plain.num_streams,
                "plain": _figures(pair.plain),
                "drafted": _figures(pair.drafted),
                "speedup": pair.speedup,
            }
            for pair in pairs
        ]
    }


def _draw(path: Path, pairs: Sequence[Pair]) -> None:
    lines = [
        Line("off", [(pair.plain.num_streams, 1.0) for pair in pairs]),
        Line(pairs[0].drafted.drafting, [(pair.plain.num_streams, pair.speedup) for pair in pairs]),
    ]
    chart = line_chart(
        lines, title="Speed-up by drafts", x_label="streams", y_label="tokens/s / plain"
    )
    try:
        path.write_text(chart, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--svg {path}: {error.strerror}") from None
