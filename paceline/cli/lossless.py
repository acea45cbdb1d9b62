"""``paceline lossless``: shows on a live deployment that drafting changes no token."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from paceline.async_client import AsyncClient
from paceline.cli.access import access_of
from paceline.cli.address import gateway_address
from paceline.cli.bench import add_request_arguments
from paceline.cli.generate import NO_TREE_IN_TIME
from paceline.cli.number_flags import MAX_STREAMS, check_seeds, whole_number
from paceline.cli.outlook import too_slow
from paceline.cli.prompts import NamedPrompt, named_prompts
from paceline.cli.terminal import progress, say, show
from paceline.cli.token_gap import Difference, first_difference, scored
from paceline.errors import ConfigurationError, DeadlineExceeded
from paceline.generation_request import GenerationOptions

DEFAULT_TEMPERATURES: Final = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt, asked without drafts and with them."""

    prompt: NamedPrompt
    seed: int
    temperature: float
    num_tokens: int
    num_accepted: int
    """Tokens of the drafted answer that came from drafts."""
    fallbacks: tuple[str, ...]
    num_empty_steps: int
    """Steps of the drafted answer that could have used a draft and had none."""
    difference: Difference | None

    def is_fine(self, max_gap: float) -> bool:
        """Whether the ids are the same, or part at a tie as near as is allowed."""
        found = self.difference
        return found is None or (found.gap is not None and abs(found.gap) <= max_gap)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the command."""
    add_request_arguments(parser)
    parser.add_argument(
        "--temperature",
        type=float,
        nargs="+",
        default=list(DEFAULT_TEMPERATURES),
        metavar="T",
        help="each prompt is asked at each (default: 0 0.8)",
    )
    parser.add_argument(
        "--streams",
        type=whole_number(1, MAX_STREAMS),
        default=4,
        metavar="N",
        help="prompts at a time (default: 4)",
    )
    parser.add_argument(
        "--max-gap",
        type=float,
        default=0.0,
        metavar="G",
        help="for half precision and GPUs: a token may differ where the target scores both within "
        "this (default: 0, no token may differ)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Compare and show; return 1 if a token differs or if nothing was drafted."""
    options.address = gateway_address(options.address)
    if not options.max_gap >= 0:
        raise ConfigurationError("--max-gap is at least 0")
    compared = asyncio.run(_compared(options))
    if options.json:
        show(json.dumps(_as_dict(compared, options.max_gap)) + "\n")
    else:
        show(report(compared, options.max_gap))
    is_proof = any(each.num_accepted for each in compared)
    return 0 if is_proof and all(each.is_fine(options.max_gap) for each in compared) else 1


async def _compared(options: argparse.Namespace) -> list[Compared]:
    access, slots = access_of(options), asyncio.Semaphore(options.streams)
    prompts = named_prompts("mixed", options.prompts)
    check_seeds(options.seed, len(prompts))
    common = GenerationOptions(model=options.model, pool=options.pool, ignore_eos=True)
    cases = [
        (prompt, options.seed + number, temperature)
        for temperature in options.temperature
        for number, prompt in enumerate(prompts)
    ]
    async with (
        AsyncClient(options.address, api_key=access.api_key, tls=access.tls) as client,
        progress(f"{len(cases)} prompts, without drafts and with them"),
    ):

        async def one(prompt: NamedPrompt, seed: int, temperature: float) -> Compared:
            async with slots:
                asked: GenerationOptions = {**common, "temperature": temperature}
                asked["max_tokens"] = options.max_tokens
                return await compare(client, prompt, seed, asked, options.timeout)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(*case)) for case in cases]
        except ExceptionGroup as failed:
            finished = [task.result() for task in tasks if _has_result(task)]
            raise _cause(failed.exceptions[0], finished, options.max_gap) from None
    return [task.result() for task in tasks]


def _has_result(task: asyncio.Task[Compared]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _cause(error: Exception, finished: Sequence[Compared], max_gap: float) -> Exception:
    """Return what to tell of the failure that ended the comparison: the first one does."""
    if finished:
        say(f"stopped early; until then: {report(finished, max_gap).rstrip()}")
    elif isinstance(error, DeadlineExceeded):
        return too_slow(error)
    return error


async def compare(
    client: AsyncClient,
    prompt: NamedPrompt,
    seed: int,
    options: GenerationOptions,
    timeout_seconds: float,
) -> Compared:
    """Ask a prompt both ways, and score the first difference, if there is one."""
    asked: GenerationOptions = {**options, "seed": seed}
    without: GenerationOptions = {**asked, "drafting": "off"}
    with_drafts: GenerationOptions = {**asked, "drafting": "on"}
    plain = await client.generate(prompt.text, timeout=timeout_seconds, **without)
    drafted = await client.generate(prompt.text, timeout=timeout_seconds, **with_drafts)
    found = first_difference(plain.token_ids, drafted.token_ids)
    if found is not None:
        found = await scored(client, prompt.text, plain, found, options)
    return Compared(
        prompt,
        seed,
        plain.sampling.temperature,
        len(drafted.token_ids),
        drafted.speculation.num_accepted_draft_tokens,
        drafted.speculation.fallbacks,
        drafted.speculation.num_empty_steps,
        found,
    )


def report(compared: Sequence[Compared], max_gap: float) -> str:
    """Return the result in words, each difference on a line of its own."""
    lines = [_told(each, max_gap) for each in compared if each.difference is not None]
    num_tokens = sum(each.num_tokens for each in compared)
    num_accepted = sum(each.num_accepted for each in compared)
    sizes = f"{len(compared)} answers, {num_tokens} tokens, {num_accepted} of them from drafts"
    if not num_accepted:
        lines.append(
            f"nothing shown: {sizes}; no draft was accepted (cause: {_causes(compared)}); "
            "ask for longer answers (--max-tokens), or give other prompts (--prompts)"
        )
    elif not lines:
        lines.append(f"lossless: {sizes}; every id is the same")
    elif all(each.is_fine(max_gap) for each in compared):
        lines.append(f"lossless up to ties within {max_gap:g}: {sizes}")
    else:
        wrong = sum(not each.is_fine(max_gap) for each in compared)
        lines.append(f"NOT lossless: {sizes}; {wrong} answers differ")
    return "\n".join(lines) + "\n"


def _causes(compared: Sequence[Compared]) -> str:
    fallbacks = Counter(cause for each in compared for cause in each.fallbacks)
    if fallbacks:
        return ", ".join(fallbacks)
    if num_empty := sum(each.num_empty_steps for each in compared):
        return f"in {num_empty} steps {NO_TREE_IN_TIME}"
    return "the target agreed with none, or no step could use one"


def _told(compared: Compared, max_gap: float) -> str:
    found = compared.difference
    if found is None:
        return ""
    where = (
        f"{compared.prompt.workload}, seed {compared.seed}, T={compared.temperature:g}: token "
        f"{found.position} is {found.drafted_token_id} with drafts, {found.plain_token_id} without"
    )
    if found.gap is None:
        return f"{where}; the gap cannot be scored: {found.cause}"
    verdict = "a tie" if compared.is_fine(max_gap) else "no tie"
    return f"{where}; the target scores them {found.gap:.4f} apart: {verdict}"


def _as_dict(compared: Sequence[Compared], max_gap: float) -> dict[str, Any]:
    return {
        "num_answers": len(compared),
        "num_tokens": sum(each.num_tokens for each in compared),
        "num_from_drafts": sum(each.num_accepted for each in compared),
        "is_lossless": all(each.is_fine(max_gap) for each in compared),
        "differences": [
            {
                "workload": each.prompt.workload,
                "seed": each.seed,
                "temperature": each.temperature,
                **asdict(each.difference),
            }
            for each in compared
            if each.difference is not None
        ],
    }
