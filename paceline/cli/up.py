"""``paceline up``: the whole line on this machine in one command."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import time
from contextlib import suppress
from pathlib import Path

from paceline.address import split_address
from paceline.cli.address import DEFAULT_ADDRESS, bindable_address
from paceline.cli.line import LOCAL_DRAFTERS, MODEL_DRAFTERS, NO_DRAFTER, Line, LinePlan
from paceline.cli.model_source import converted_gguf, demo_model, draft_model, model_folder
from paceline.cli.terminal import say
from paceline.errors import (
    ConfigurationError,
    PacelineError,
    PermissionDenied,
    Unauthenticated,
)
from paceline.events import DraftPool
from paceline.installed_drafters import installed_drafters
from paceline.serving import termination_signal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face model folder")
    source.add_argument("--gguf", type=Path, metavar="FILE", help="a GGUF file, converted once")
    source.add_argument(
        "--demo", action="store_true", help="Gemma 3 270M, as installed by the extra 'demo'"
    )
    drafters = ", ".join(LOCAL_DRAFTERS)
    parser.add_argument(
        "--draft",
        default=LOCAL_DRAFTERS[0],
        metavar="DRAFTER",
        help=f"{drafters}, another installed drafter, {NO_DRAFTER}, or host:port of a draft "
        "service (default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help="address of the gateway; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="where the services log (default: the user's state folder)",
    )
    for service in ("verify", "draft", "gateway"):
        parser.add_argument(
            f"--{service}-args",
            default="",
            metavar="FLAGS",
            help=f"further flags of the {service} service, in one quoted word",
        )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes or a service that cannot be missed dies."""
    return asyncio.run(_until_signal(options))


async def _until_signal(options: argparse.Namespace) -> int:
    async with termination_signal() as signalled:
        serving = asyncio.create_task(_serve(options))
        waiting = asyncio.create_task(signalled.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not serving.done():
            say("stopping: running requests may finish; a second Ctrl-C stops at once")
            serving.cancel()
        try:
            await serving
        except asyncio.CancelledError:
            say("stopped")
    return 0


async def _serve(options: argparse.Namespace) -> None:
    begun = time.monotonic()
    listen = bindable_address(options.listen, "--listen")
    _check_draft(options.draft)
    draft_arguments = _words(options.draft_args, "--draft-args")
    model = await _model(options)
    if options.draft in MODEL_DRAFTERS and "--onnx-model" not in draft_arguments:
        draft_arguments += ("--onnx-model", str(await draft_model(model)))
    plan = LinePlan(
        model=model,
        log_folder=options.log_dir or _state_folder() / f"up-{listen.rpartition(':')[2]}",
        listen=listen,
        draft=options.draft,
        verify_arguments=_words(options.verify_args, "--verify-args"),
        draft_arguments=draft_arguments,
        gateway_arguments=_words(options.gateway_args, "--gateway-args"),
    )
    say(f"starting the line; logs: {plan.log_folder}")
    async with Line(plan) as line:
        say(f"ready at {line.address} after {time.monotonic() - begun:.0f} s")
        pool = await _told_drafting(line)
        flag = "" if line.address == DEFAULT_ADDRESS else f" --address {line.address}"
        say(f'try: paceline generate{flag} --stats "def fibonacci(n):"')
        telling = asyncio.create_task(_tell_when_drafting(line, pool))
        try:
            await line.until_broken()
        finally:
            telling.cancel()


async def _told_drafting(line: Line) -> DraftPool | None:
    """Say whether the line drafts; return the pool as far as the gateway tells."""
    try:
        pool = await line.draft_pool() if line.plan.pool else None
    except (Unauthenticated, PermissionDenied):
        say("serving those who have a key; with one, paceline doctor tells whether drafts come")
        return None
    say(drafting_status(line.plan, pool))
    return pool


async def _tell_when_drafting(line: Line, pool: DraftPool | None) -> None:
    """Say so when a drafter is ready that was not as the line began to serve."""
    if pool is None or pool.available or pool.cause == "mismatch":
        return
    with suppress(PacelineError):
        say(drafting_status(line.plan, await line.draft_pool(math.inf)))


async def _model(options: argparse.Namespace) -> Path:
    if options.demo:
        return model_folder(await demo_model(), "--demo")
    if options.gguf:
        return model_folder(await converted_gguf(options.gguf), "--gguf")
    return model_folder(options.model)


def _check_draft(draft: str) -> None:
    if ":" in draft:
        split_address(draft, "--draft")
        return
    others = sorted(installed_drafters().keys() - {*LOCAL_DRAFTERS})
    known = (*LOCAL_DRAFTERS, *others, NO_DRAFTER)
    if draft not in known:
        raise ConfigurationError(
            f"--draft is the name of a drafter ({', '.join(known)}), or host:port, not {draft!r}"
        )


def drafting_status(plan: LinePlan, pool: DraftPool | None) -> str:
    """Return in one line whether the line drafts, and if not why."""
    if not plan.pool:
        return "serving without drafts, as asked"
    if pool is None:
        return f"serving without drafts: the gateway knows no pool {plan.pool}"
    if pool.available:
        return f"drafting: pool {pool.name} ({pool.drafter})"
    cause = ": ".join(part for part in (pool.cause, pool.detail) if part)
    where = f" at {plan.draft}" if plan.is_drafted_elsewhere else ""
    retry = "" if pool.cause == "mismatch" else "; drafts start by themselves once it answers"
    if "warming up" in pool.detail:
        return (
            "serving; drafts start once the drafter is ready: the first start of suffix and "
            "composite compiles for about a minute"
        )
    return f"serving without drafts: the draft service{where} cannot be used ({cause}){retry}"


def _words(flags: str, option: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "paceline"
