"""``paceline generate``: one prompt through a gateway."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from paceline.cli.access import access_of, add_access_arguments
from paceline.cli.address import add_address_argument, gateway_address
from paceline.cli.constraint_flags import add_constraint_arguments, constraint_flag, constraint_of
from paceline.cli.number_flags import MAX_SEED, MAX_UINT32, whole_number
from paceline.cli.terminal import say, show
from paceline.client import DEFAULT_TIMEOUT_SECONDS, Client
from paceline.errors import ConfigurationError, DeadlineExceeded
from paceline.events import Delta, Event, Finished, Speculation, Started, Summary
from paceline.generation_request import ChatMessage, GenerationOptions

NO_TREE_IN_TIME: Final = "no tree had come in time or was worth a row"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the command."""
    add_address_argument(parser)
    parser.add_argument("prompt", nargs="?", help="the prompt; '-' or nothing: standard input")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a chat message")
    parser.add_argument("--system", metavar="TEXT", help="a system message; implies --chat")
    parser.add_argument("--model", help="model name, where several are served")
    _add_sampling(parser)
    add_constraint_arguments(parser)
    drafting = parser.add_mutually_exclusive_group()
    drafting.add_argument("--no-draft", action="store_true", help="decode without drafts")
    drafting.add_argument("--draft", action="store_true", help="use drafts whatever the load")
    parser.add_argument("--pool", help="draft pool")
    parser.add_argument(
        "--workload", metavar="NAME", help="kind of text, by which the best pool is measured"
    )
    parser.add_argument(
        "--max-draft-tokens", type=whole_number(1, MAX_UINT32), metavar="N", help="nodes per step"
    )
    parser.add_argument("--stats", action="store_true", help="print figures at the end")
    parser.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    add_access_arguments(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="for the whole answer (default: %(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    """Stream the text to standard output and the figures to standard error."""
    answer = Answer()
    access = access_of(options)
    options.address = gateway_address(options.address)
    with Client(options.address, api_key=access.api_key, tls=access.tls) as client:
        try:
            _ask(client, options, answer)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"the answer took longer than --timeout {options.timeout:g} s; allow more"
            ) from error
        finally:
            # What came before an error is valid.
            _end(answer, as_json=options.json)
    if answer.is_cut_off and (constraint := constraint_flag(options)):
        say(f"cut off at the most tokens allowed, perhaps short of {constraint}; see --max-tokens")
    if options.stats:
        for line in answer.figures():
            say(line)
    return 0


def _ask(client: Client, options: argparse.Namespace, answer: Answer) -> None:
    prompt = _prompt(options.prompt)
    for event in client.stream(
        None if _is_chat(options) else prompt,
        timeout=options.timeout,
        **_request_options(options, prompt),
    ):
        answer.add(event)
        if isinstance(event, Delta) and not options.json:
            show(event.text)


def _end(answer: Answer, *, as_json: bool) -> None:
    if not answer.text and answer.finished is None:
        return
    if as_json:
        show(json.dumps(answer.as_dict(), ensure_ascii=False) + "\n")
    elif not answer.text.endswith("\n"):
        show("\n")


@dataclass(slots=True)
class Answer:
    """What the events of one request add up to."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None
    summary: Summary = field(default_factory=Summary)

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended at a limit, not by itself."""
        return self.finished is not None and self.finished.finish_reason == "length"

    def add(self, event: Event) -> None:
        """Take in the next event."""
        match event:
            case Started():
                self.started = event
            case Delta():
                self.text += event.text
                self.token_ids.extend(event.token_ids)
            case Finished():
                self.finished = event
            case Summary():
                self.summary = event

    def as_dict(self) -> dict[str, Any]:
        """Return everything that is known, ready for JSON."""
        return {
            "request_id": self.started.request_id if self.started else "",
            "model": self.started.model if self.started else "",
            "sampling": asdict(self.started.sampling) if self.started else {},
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finished.finish_reason if self.finished else "unknown",
            "matched_stop": self.finished.matched_stop if self.finished else None,
            **asdict(self.summary),
        }

    def figures(self) -> list[str]:
        """Return the figures of the request, one subject a line."""
        usage, speculation = self.summary.usage, self.summary.speculation
        timing = self.summary.timing
        decode_seconds = timing.total_seconds - timing.time_to_first_token_seconds
        rate = (usage.completion_tokens - 1) / decode_seconds if decode_seconds > 0 else 0.0
        seed = self.started.sampling.seed if self.started else 0
        reason = self.finished.finish_reason if self.finished else "unknown"
        lines = [
            f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out ({reason})",
            f"time: first token {timing.time_to_first_token_seconds:.2f} s, "
            f"total {timing.total_seconds:.2f} s, {rate:.1f} tokens/s",
            _drafts(speculation)
            + (f", pool {speculation.pool}" if speculation.pool else "")
            + (f" ({speculation.pool_cause})" if speculation.pool_cause else ""),
            f"seed: {seed}",
        ]
        if speculation.fallbacks:
            lines.insert(3, f"without drafts because of: {', '.join(speculation.fallbacks)}")
        return lines


def _drafts(speculation: Speculation) -> str:
    if speculation.num_draft_tokens:
        return (
            f"drafts: {speculation.num_accepted_draft_tokens} of {speculation.num_draft_tokens} "
            f"accepted, {speculation.mean_acceptance_length:.2f} tokens per step"
        )
    if not speculation.num_spec_steps:
        return "drafts: none, the answer needed no step that could use one"
    if speculation.num_empty_steps:
        return (
            f"drafts: none, in {speculation.num_empty_steps} of {speculation.num_spec_steps} steps "
            + NO_TREE_IN_TIME
        )
    return "drafts: none"


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1, MAX_UINT32),
        metavar="N",
        help="most tokens to generate",
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument(
        "--top-k",
        type=whole_number(0, MAX_UINT32),
        metavar="K",
        help="choose among the K likeliest tokens; 0: all",
    )
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="among the likeliest that make up P; 1: all"
    )
    parser.add_argument(
        "--min-p", type=float, metavar="P", help="among those P times as likely as the best; 0: all"
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, MAX_SEED),
        metavar="N",
        help="the same seed gives the same text again",
    )
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end at this text; repeatable"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")


def _prompt(given: str | None) -> str:
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin.isatty():
        raise ConfigurationError("a prompt is missing; give one, or '-' for standard input")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise ConfigurationError("the prompt on standard input is not UTF-8 text") from None


def _is_chat(options: argparse.Namespace) -> bool:
    return bool(options.chat or options.system is not None)


def _request_options(options: argparse.Namespace, prompt: str) -> GenerationOptions:
    request = GenerationOptions(
        model=options.model,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
        ignore_eos=options.ignore_eos,
        pool=options.pool,
        workload=options.workload,
        max_draft_tokens=options.max_draft_tokens,
        return_token_ids=options.json,
        drafting="off" if options.no_draft else "on" if options.draft else "auto",
    )
    request = {**request, **constraint_of(options)}
    if _is_chat(options):
        request["messages"] = _conversation(options.system, prompt)
    return request


def _conversation(system: str | None, prompt: str) -> list[ChatMessage]:
    user = ChatMessage(role="user", content=prompt)
    return [user] if system is None else [ChatMessage(role="system", content=system), user]
