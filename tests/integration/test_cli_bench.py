"""``paceline bench`` and ``lossless`` against a gateway in front of a scripted verifier."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import pytest_asyncio

from paceline.cli.main import main
from paceline.noise_keys import token_noise
from paceline.v1 import types_pb2
from paceline.v1 import verify_service_pb2 as verify
from tests.doubles.gateway_command import command
from tests.doubles.running_gateway import RunningGateway, running_gateway
from tests.doubles.scripted_verifier import (
    RUNS,
    ScriptedVerifier,
    expected_token_ids,
    failing_after,
    model_info,
    serving,
    step,
)

pytestmark = pytest.mark.asyncio

OTHER = 3
"""Never what the scripted model says first."""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two prompts, one of them with a workload of its own."""
    path = tmp_path / "prompts.txt"
    path.write_text('one plain prompt\n{"prompt": "def f(x):", "workload": "code"}\n')
    return path


async def test_bench_compares_plain_and_drafted_at_each_concurrency(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chart = tmp_path / "chart.svg"
    flags = ("--streams", "1", "3", "--requests", "6", "--json", "--svg", str(chart))

    code = await command("bench", running, prompts, *flags)

    runs = json.loads(capsys.readouterr().out)["runs"]
    assert code == 0
    assert [run["num_streams"] for run in runs] == [1, 3]
    assert all(run[mode]["num_tokens"] == 72 for run in runs for mode in ("plain", "drafted"))
    assert runs[0]["plain"]["fallbacks"] == {"requested": 6}
    assert runs[0]["drafted"]["acceptance_length"] == pytest.approx(11 / 4)
    assert all(run["speedup"] > 0 for run in runs)
    seeds = {start.sampling.seed for start in verifier.starts}
    assert {1, 2, 3, 4, 5, 6} <= seeds
    assert ElementTree.fromstring(chart.read_text()).tag.endswith("svg")  # noqa: S314 our own


async def test_bench_prints_a_table(
    running: RunningGateway, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await command("bench", running, prompts, "--streams", "2", "--requests", "2")

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.split()[:2] for line in lines] == [
        ["streams", "drafts"],
        ["2", "off"],
        ["2", "auto"],
    ]
    assert len({len(line) for line in lines}) == 1


async def test_bench_counts_what_failed_and_says_so(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verifier.script = failing_after(verifier, 3)

    code = await command("bench", running, prompts, "--streams", "1", "--requests", "2", "--json")

    shown = capsys.readouterr()
    (run,) = json.loads(shown.out)["runs"]
    assert code == 1
    assert (run["plain"]["num_failed"], run["drafted"]["num_failed"]) == (1, 2)
    assert "1 requests failed" in shown.err


async def test_bench_stops_when_the_first_requests_all_fail_alike(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The two requests of the warm-up are answered, none after them."""
    verifier.script = failing_after(verifier, 2)

    code = await command("bench", running, prompts, "--streams", "2", "--requests", "500")

    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err == (
        "paceline: error: stopped: the first 4 requests all failed with INTERNAL and none was "
        "answered: scripted\n"
    )
    assert len(verifier.starts) < 12


async def test_bench_goes_on_after_failures_once_a_request_was_answered(
    running: RunningGateway, verifier: ScriptedVerifier, prompts: Path
) -> None:
    verifier.script = failing_after(verifier, 3)

    code = await command("bench", running, prompts, "--streams", "1", "--requests", "9")

    assert code == 2
    assert len(verifier.starts) == 2 + 9 + 4


@pytest.mark.parametrize("name", ["bench", "lossless"])
async def test_a_command_whose_first_requests_take_too_long_stops_at_once(
    name: str,
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verifier.script = lambda _: ()

    code = await command(name, running, prompts, "--timeout", "0.2")

    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert "no request was answered in time" in shown.err
    assert shown.err.endswith("; allow more with --timeout\n")
    assert shown.err.count("\n") == 1


async def test_lossless_says_so_when_all_ids_are_the_same(
    running: RunningGateway, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await command("lossless", running, prompts)

    assert code == 0
    assert capsys.readouterr().out == (
        "lossless: 4 answers, 48 tokens, 28 of them from drafts; every id is the same\n"
    )


async def test_lossless_shows_nothing_without_drafts(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(start: verify.Start) -> Iterable[verify.AttachResponse]:
        yield step(start, _answer(start), finish=types_pb2.FINISH_REASON_LENGTH, is_prefill=True)

    verifier.script = script

    assert await command("lossless", running, prompts) == 1
    shown = capsys.readouterr().out
    assert "nothing shown" in shown
    assert "ask for longer answers (--max-tokens)" in shown


@pytest_asyncio.fixture
async def lossy(folder: Path) -> AsyncIterator[RunningGateway]:
    """A gateway whose verifier says another token with drafts, 0.25 below its best one."""
    async with (
        serving(ScriptedVerifier(lossy_script)) as address,
        running_gateway(folder, address) as gateway,
    ):
        yield gateway


def lossy_script(start: verify.Start) -> Iterable[verify.AttachResponse]:
    """Say the third token otherwise when drafting; tell its log-probability when asked."""
    answer = _answer(start)
    if start.drafting.pool:
        answer[2] = OTHER
    yield step(start, answer[:1], is_prefill=True, finish=_end(answer[:1], answer))
    for index in range(1, len(answer)):
        yield step(
            start,
            answer[index : index + 1],
            drafted=2 if start.drafting.pool else 0,
            accepted=1 if start.drafting.pool else 0,
            finish=_end(answer[: index + 1], answer),
        )


def _answer(start: verify.Start) -> list[int]:
    said = len(start.emitted_token_ids)
    whole = expected_token_ids(start.prompt_token_ids, start.limits.max_tokens)
    return whole[said:]


def _end(said: list[int], answer: list[int]) -> types_pb2.FinishReason.ValueType:
    return types_pb2.FINISH_REASON_LENGTH if len(said) == len(answer) else RUNS


async def test_lossless_names_a_difference_that_cannot_be_scored(
    lossy: RunningGateway, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await command("lossless", lossy, prompts, "--temperature", "0")

    shown = capsys.readouterr().out
    assert code == 1
    assert "NOT lossless" in shown
    assert f"token 2 is {OTHER} with drafts" in shown
    assert "the gap cannot be scored: the verifier offers no log-probabilities" in shown


@pytest.mark.parametrize(("temperature", "max_gap"), [("0", "0.3"), ("0.8", "100")])
async def test_lossless_accepts_a_tie_that_the_target_itself_scores_within_the_gap(
    folder: Path,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
    temperature: str,
    max_gap: str,
) -> None:
    """Teacher-forced: the verifier is asked for one more token after what both answers share."""
    verifier = ScriptedVerifier(scoring_script, info=model_info())
    async with serving(verifier) as address, running_gateway(folder, address) as running:
        strict = await command("lossless", running, prompts, "--temperature", temperature)
        ties = ("--temperature", temperature, "--max-gap", max_gap, "--json")
        lenient = await command("lossless", running, prompts, *ties)

    told, _, result = capsys.readouterr().out.strip().rpartition("\n")
    found = json.loads(result)["differences"][0]
    asked = next(
        start
        for start in verifier.starts
        if start.HasField("num_logprobs") and start.sampling.seed == found["seed"]
    )
    tokens = (found["plain_token_id"], found["drafted_token_id"])
    place = len(asked.prompt_token_ids) + 2
    noise = [token_noise(found["seed"], place, token_id) for token_id in tokens]
    heat = float(temperature)
    expected = 0.25 / heat + noise[0] - noise[1] if heat else 0.25
    assert (strict, lenient) == (1, 0)
    assert "no tie" in told
    assert found["gap"] == pytest.approx(expected, abs=1e-5)
    assert len(asked.emitted_token_ids) == 2


def scoring_script(start: verify.Start) -> Iterable[verify.AttachResponse]:
    """Be lossy, and tell the two best tokens where that is asked for."""
    if not start.HasField("num_logprobs"):
        yield from lossy_script(start)
        return
    (token_id,) = _answer(start)
    response = step(start, [token_id], is_prefill=True, finish=types_pb2.FINISH_REASON_LENGTH)
    told = response.results[0].logprobs.add(logprob=-0.5)
    told.top_logprobs.add(token_id=token_id, logprob=-0.5)
    told.top_logprobs.add(token_id=OTHER, logprob=-0.75)
    yield response


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "0 prompts"),
        ('{"text": "a"}', "line 1"),
        ('{"prompt": 3}', "are texts"),
    ],
)
async def test_a_file_of_prompts_that_makes_no_sense_is_misuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    path = tmp_path / "prompts"
    path.write_text(content)

    assert await asyncio.to_thread(main, ["bench", "--prompts", str(path)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (("--pool", "nowhere"), 2, "--pool: there is no 'nowhere'; available: "),
        (("--temperature", "nan"), 2, "--temperature: nan is not in [0, 10]; choose a value"),
        (("--timeout", "0"), 2, "--timeout is 0"),
        (("--max-gap", "nan"), 2, "--max-gap is at least 0"),
        (("--address", "127.0.0.1:1"), 1, "no gateway answers"),
    ],
)
async def test_lossless_names_what_keeps_it_from_comparing(
    running: RunningGateway,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, str],
    code: int,
    told: str,
) -> None:
    assert await command("lossless", running, prompts, *flags) == code
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("name", ["bench", "lossless"])
async def test_another_service_than_a_gateway_is_told_from_one(
    name: str,
    running: RunningGateway,
    verifier: ScriptedVerifier,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(verifier) as address:
        assert await command(name, running, prompts, "--address", address) == 2

    shown = capsys.readouterr().err
    assert "another service listens there" in shown
    assert shown.count("\n") == 1
