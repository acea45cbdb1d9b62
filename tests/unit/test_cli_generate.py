from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    NotFound,
    PacelineError,
    Unavailable,
)
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from tests.doubles.scripted_gateway import (
    ScriptedGateway,
    Turn,
    delta,
    finished,
    serving,
    started,
    summary,
)

HELLO = Turn((started(), delta("Hel", 4, 5), delta("lo", 6), finished(), summary(3)))

pytestmark = pytest.mark.asyncio


async def _run(gateway: ScriptedGateway, *arguments: str) -> int:
    async with serving(gateway):
        command = ["generate", "--address", gateway.address, *arguments]
        return await asyncio.to_thread(main, command)


async def test_text_goes_to_stdout_and_figures_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exit_code = await _run(ScriptedGateway(HELLO), "hi", "--stats")

    shown = capsys.readouterr()
    assert exit_code == 0
    assert shown.out == "Hello\n"
    assert "3 in, 3 out (stop)" in shown.err
    assert "3 of 6 accepted, 2.50 tokens per step, pool ngram" in shown.err
    assert "without drafts because of: load" in shown.err
    assert "seed: 7" in shown.err


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            {"num_spec_steps": 9, "num_empty_steps": 9, "pool": "ngram"},
            "drafts: none, in 9 of 9 steps no tree had come in time or was worth a row, pool ngram",
        ),
        ({"num_spec_steps": 9}, "drafts: none\n"),
        ({"pool": "ngram"}, "drafts: none, the answer needed no step that could use one"),
    ],
)
async def test_answer_without_drafts_says_why(
    record: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    end = messages.StreamGenerateResponse(
        summary=messages.Summary(speculation=types_pb2.SpeculationStats(**record))
    )

    await _run(ScriptedGateway(Turn((started(), delta("Hi"), finished(), end))), "hi", "--stats")

    assert told in capsys.readouterr().err


async def test_json_is_one_object_with_ids(capsys: pytest.CaptureFixture[str]) -> None:
    await _run(ScriptedGateway(HELLO), "hi", "--json")

    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "Hello"
    assert answer["token_ids"] == [4, 5, 6]
    assert answer["finish_reason"] == "stop"
    assert answer["sampling"]["seed"] == 7
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["speculation"]["acceptance_histogram"] == [0, 1, 1]


async def test_flags_reach_the_request() -> None:
    gateway = ScriptedGateway(HELLO)

    await _run(
        gateway, "hi", "--no-draft", "--seed", "5", "--temperature", "0", "--max-tokens", "9",
        "--stop", "a", "--stop", "b", "--system", "Be brief.",
    )  # fmt: skip

    (request,) = gateway.requests
    assert request.drafting.mode == messages.DRAFTING_MODE_OFF
    assert request.sampling.seed == 5
    assert request.sampling.HasField("temperature")
    assert request.stopping.max_tokens == 9
    assert list(request.stopping.stop) == ["a", "b"]
    assert [message.role for message in request.chat.messages] == ["system", "user"]


async def test_prompt_may_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = ScriptedGateway(HELLO)
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))

    await _run(gateway, "-")

    assert gateway.requests[0].text == "from a pipe"


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
async def test_standard_input_that_is_no_text_is_told_as_the_prompt(
    errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = ScriptedGateway()
    given = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", given)

    assert await _run(gateway, "-") == 2

    shown = capsys.readouterr().err
    assert shown.startswith("paceline: error: the prompt ")
    assert "UTF-8 text" in shown
    assert not gateway.requests


async def test_gateway_that_is_not_there_is_one_line_with_address_and_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exit_code = await asyncio.to_thread(main, ["generate", "--address", "127.0.0.1:1", "hi"])

    shown = capsys.readouterr()
    assert exit_code == 1
    assert shown.err == (
        "paceline: error: no gateway answers at 127.0.0.1:1: start one with `paceline up --demo`, "
        "or name another with --address\n"
    )


async def test_error_in_mid_stream_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Unavailable("no verifier\nis left", retry_after_seconds=0.01)
    turns = [Turn((started(), delta("Hel")), error=lost)] * 4

    assert await _run(ScriptedGateway(*turns), "hi") == 1

    assert capsys.readouterr().err == "paceline: error: no verifier is left\n"


async def test_option_that_the_server_refuses_is_a_misuse(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turn = Turn(error=InvalidRequest("sampling.top_p: must be in (0, 1]", field="sampling.top_p"))

    assert await _run(ScriptedGateway(turn), "hi", "--top-p", "3") == 2

    assert capsys.readouterr().err == "paceline: error: --top-p: must be in (0, 1]\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            NotFound("drafting.pool: there is no 'x'; available: ngram", field="drafting.pool"),
            "--pool: there is no 'x'; available: ngram",
        ),
        (
            InvalidRequest("stopping.stop[0]: is empty; leave it out", field="stopping.stop[0]"),
            "--stop: is empty; leave it out",
        ),
        (
            InvalidRequest("limits.ignore_eos would never end", field="limits.ignore_eos"),
            "--ignore-eos would never end",
        ),
        (InvalidRequest("n: 17 is not in [1, 16]", field="n"), "n: 17 is not in [1, 16]"),
        (InvalidRequest("text: is empty", field="text"), "the prompt: is empty"),
        (InvalidRequest("\x1b[31mred\u2028\u202e", field="seed"), "--seed: ?[31mred ?"),
        (InvalidRequest("x" * 5000), "x" * 1000 + " ..."),
    ],
)
async def test_a_refusal_is_one_harmless_line_that_names_the_flag(
    error: PacelineError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _run(ScriptedGateway(Turn(error=error)), "hi") == 2

    assert capsys.readouterr().err == f"paceline: error: {told}\n"


@pytest.mark.parametrize("as_json", [True, False])
async def test_what_came_before_an_error_is_shown(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = EngineFailed("a fault of its own")
    gateway = ScriptedGateway(Turn((started(), delta("Hel", 4)), error=fault))

    assert await _run(gateway, "hi", *(["--json"] if as_json else [])) == 1

    shown = capsys.readouterr()
    assert shown.err == "paceline: error: a fault of its own\n"
    if as_json:
        answer = json.loads(shown.out)
        assert (answer["text"], answer["finish_reason"]) == ("Hel", "unknown")
    else:
        assert shown.out == "Hel\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_a_request_refused_after_its_start_shows_nothing(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A constraint is refused by the verifier, after the gateway has said that it has started."""
    refused = InvalidRequest("structured_output.regex: no", field="structured_output.regex")

    assert await _run(ScriptedGateway(Turn((started(),), error=refused)), "hi", *flags) == 2

    assert capsys.readouterr() == ("", "paceline: error: --regex: no\n")


async def test_an_answer_that_takes_too_long_names_the_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    late = Turn(error=DeadlineExceeded("the deadline passed"))

    assert await _run(ScriptedGateway(late), "hi", "--timeout", "7.5") == 1

    assert capsys.readouterr().err == (
        "paceline: error: the answer took longer than --timeout 7.5 s; allow more\n"
    )


async def test_a_constrained_answer_that_was_cut_off_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = Turn((started(), delta('{"a'), finished(types_pb2.FINISH_REASON_LENGTH), summary(3)))

    assert await _run(ScriptedGateway(cut), "hi", "--regex", "a+") == 0
    constrained = capsys.readouterr()
    assert await _run(ScriptedGateway(cut), "hi") == 0
    free = capsys.readouterr()

    assert constrained.out == free.out == '{"a\n'
    assert constrained.err == (
        "cut off at the most tokens allowed, perhaps short of --regex; see --max-tokens\n"
    )
    assert free.err == ""


async def test_a_prompt_of_several_words_without_quotes_is_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await asyncio.to_thread(main, ["generate", "tell", "me", "more"]) == 2

    assert capsys.readouterr().err == (
        "paceline generate: error: unrecognized arguments: me more (put a prompt of several words "
        "in quotes); see paceline generate --help\n"
    )


async def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    gateway, schema = ScriptedGateway(HELLO), tmp_path / "schema.json"
    schema.write_bytes(b'\xef\xbb\xbf{"type": "null"}')

    await _run(gateway, "hi", "--json-schema", str(schema))

    assert gateway.requests[0].structured_output.json_schema == '{"type": "null"}'


@pytest.mark.parametrize("key", ["", " \n", "two\nlines", "two words", "caf\u00e9", "x" * 9000])
async def test_a_key_that_no_header_can_carry_is_refused_before_it_is_sent(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway, path = ScriptedGateway(), tmp_path / "key"
    path.write_text(key)

    assert await _run(gateway, "hi", "--api-key-file", str(path)) == 2

    shown = capsys.readouterr().err
    assert shown.startswith(f"paceline: error: --api-key-file {path}: an API key or token is one")
    assert key.strip() not in shown or not key.strip()
    assert not gateway.requests
