"""Where an output's text begins and ends: stop strings, stop tokens, resumes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import RunningGateway, running_gateway
from tests.doubles.scripted_verifier import (
    ScriptedVerifier,
    serving,
    step,
    steps_of,
)

pytestmark = pytest.mark.asyncio

PROMPT = [10, 20, 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a chat template."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def verifier() -> ScriptedVerifier:
    """A verifier whose script a test may change."""
    return ScriptedVerifier()


@pytest_asyncio.fixture
async def running(folder: Path, verifier: ScriptedVerifier) -> AsyncIterator[RunningGateway]:
    """A gateway in front of the verifier."""
    async with serving(verifier) as address, running_gateway(folder, address) as gateway:
        yield gateway


def asking(
    max_tokens: int = 12, *, stop: tuple[str, ...] = (), include_stop: bool = False
) -> messages.GenerateRequest:
    """Return a request with a prompt in ids that wants ids back."""
    return messages.GenerateRequest(
        token_ids=messages.TokenIds(ids=PROMPT),
        stopping=messages.StoppingOptions(
            max_tokens=max_tokens, stop=stop, include_stop=include_stop
        ),
        output=messages.OutputOptions(return_token_ids=True),
    )


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("include_stop", [False, True])
async def test_a_stop_string_ends_text_ids_and_usage_wherever_it_falls_in_a_run(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    tokenizer: Tokenizer,
    width: int,
    include_stop: bool,
) -> None:
    """B038, B044: and the verifier is told at once."""
    token_ids = tokenizer.encode("alpha beta STOP gamma delta", add_special_tokens=False).ids
    verifier.script = steps_of(token_ids, width)

    answer = await running.generate(asking(100, stop=("STOP",), include_stop=include_stop))

    output, figures = answer.outputs[0], answer.speculation
    kept = list(output.token_ids)
    assert output.text == ("alpha beta STOP" if include_stop else "alpha beta ")
    assert output.finish_reason == types_pb2.FINISH_REASON_STOP
    assert output.matched_stop.text == "STOP"
    assert kept == token_ids[: len(kept)]
    assert tokenizer.decode(kept) == "alpha beta STOP"
    assert answer.usage.completion_tokens == len(kept)
    accepted = sum(j * count for j, count in enumerate(figures.acceptance_histogram))
    assert figures.num_accepted_draft_tokens == accepted <= figures.num_draft_tokens
    assert accepted + 1 <= len(kept)


async def test_a_stop_string_cancels_at_the_verifier(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("one STOP " + "x " * 200, add_special_tokens=False).ids
    verifier.script, verifier.pause_seconds = steps_of(token_ids, 1), 0.01

    await running.generate(asking(400, stop=("STOP",)))

    await verifier.until(lambda seen: seen.cancels)
    assert verifier.cancels == [verifier.starts[0].request_id]


async def test_min_tokens_puts_stop_strings_off(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("aXbXc", add_special_tokens=False).ids
    verifier.script = steps_of(token_ids, 2)
    request = asking(100, stop=("X",))
    request.stopping.min_tokens = 3

    answer = await running.generate(request)

    assert answer.outputs[0].text == "aXb"


@pytest.mark.parametrize(("include_stop", "expected"), [(False, "ab"), (True, "ab!")])
async def test_a_stop_token_is_in_the_ids_and_only_on_demand_in_the_text(
    running: RunningGateway,
    verifier: ScriptedVerifier,
    tokenizer: Tokenizer,
    include_stop: bool,
    expected: str,
) -> None:
    """B036."""
    token_ids = tokenizer.encode("ab!", add_special_tokens=False).ids
    verifier.script = lambda start: [
        step(
            start,
            token_ids,
            finish=types_pb2.FINISH_REASON_STOP,
            is_prefill=True,
            stop_token_id=token_ids[-1],
        )
    ]
    request = asking(100, include_stop=include_stop)
    request.stopping.stop_token_ids.append(token_ids[-1])

    answer = await running.generate(request)

    output = answer.outputs[0]
    assert output.text == expected
    assert list(output.token_ids) == token_ids
    assert output.matched_stop.token_id == token_ids[-1]
    assert output.finish_reason == types_pb2.FINISH_REASON_STOP
    assert list(verifier.starts[0].limits.stop_token_ids) == [token_ids[-1]]


async def test_a_resume_sends_only_what_follows_with_the_text_in_step(
    running: RunningGateway, verifier: ScriptedVerifier, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("price: 5€ or 😀 so", add_special_tokens=False).ids
    verifier.script = lambda start: steps_of(token_ids[len(start.emitted_token_ids) :])(start)
    request = asking(len(token_ids))
    request.sampling.seed = 5
    whole = (await running.generate(request)).outputs[0]

    for cut in range(1, len(token_ids)):
        resumed = messages.GenerateRequest()
        resumed.CopyFrom(request)
        resumed.resume_token_ids.extend(token_ids[:cut])
        answer = await running.generate(resumed)

        held_back = tokenizer.decode(token_ids[:cut]).rstrip("\ufffd")
        assert held_back + answer.outputs[0].text == whole.text
        assert list(answer.outputs[0].token_ids) == token_ids[cut:]
        assert answer.usage.completion_tokens == len(token_ids)


async def test_a_resume_of_a_finished_output_finishes_without_a_verifier(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    request = asking(4)
    request.sampling.seed = 5
    request.resume_token_ids.extend([40, 41, 42, 43])

    answer = await running.generate(request)

    assert verifier.starts == []
    assert answer.outputs[0].text == ""
    assert answer.outputs[0].finish_reason == types_pb2.FINISH_REASON_LENGTH
