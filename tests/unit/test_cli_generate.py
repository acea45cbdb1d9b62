from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.errors import InvalidRequest, Unavailable
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

    assert "sampling.top_p" in capsys.readouterr().err
