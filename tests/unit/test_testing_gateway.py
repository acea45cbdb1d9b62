"""The gateway that applications test against."""

from __future__ import annotations

import subprocess
import sys

import pytest

import paceline
from paceline.errors import InvalidRequest, Overloaded, Unavailable
from paceline.events import Delta, Finished, FinishReason, Started, Summary
from paceline.testing import Answer, FakeGateway


def test_it_says_what_it_was_told_and_notes_what_it_was_asked() -> None:
    with FakeGateway(Answer("Hello")) as gateway:
        with paceline.Client(gateway.target, api_key="k") as client:
            generation = client.generate("Hi", temperature=0.5, seed=3)
        request = gateway.requests[0]

    assert (generation.text, generation.seed) == ("Hello", 3)
    assert generation.token_ids == tuple(map(ord, "Hello"))
    assert generation.usage.completion_tokens == 5
    assert (request.text, request.sampling.temperature) == ("Hi", 0.5)
    assert gateway.credentials == ["Bearer k"]


def test_a_stream_comes_in_pieces() -> None:
    answer = Answer("Hello", characters_per_delta=2, finish_reason=FinishReason.LENGTH)
    with FakeGateway(answer) as gateway, paceline.Client(gateway.target) as client:
        events = list(client.stream("Hi"))

    assert [type(event) for event in events] == [Started, *[Delta] * 3, Finished, Summary]
    assert events[1] == Delta("He", completion_tokens=2)
    assert events[4] == Finished(FinishReason.LENGTH)


def test_several_outputs_say_the_same_whatever_else_is_asked_for() -> None:
    with FakeGateway(Answer("Hello")) as gateway, paceline.Client(gateway.target) as client:
        whole = client.generate("Hi", n=2, max_tokens=1, stop=["l"], model="another")
        events = list(client.stream("Hi", n=2))
        once = client.generate("Hi")

    assert [output.text for output in whole.outputs] == ["Hello", "Hello"]
    assert [output.index for output in whole.outputs] == [0, 1]
    assert whole.usage.completion_tokens == 10
    texts = ["", ""]
    for event in events:
        if isinstance(event, Delta):
            texts[event.index] += event.text
            assert event.completion_tokens == len(texts[event.index])
    assert texts == ["Hello", "Hello"]
    assert [event.index for event in events if isinstance(event, Finished)] == [0, 1]
    assert len(once.outputs) == 1


@pytest.mark.asyncio
async def test_the_asyncio_client_works_alike() -> None:
    with FakeGateway(Answer("a"), Answer("b")) as gateway:
        async with paceline.AsyncClient(gateway.target) as client:
            texts = [(await client.generate("Hi")).text for _ in range(3)]
            models = await client.models()
            tokens = await client.tokenize("ab")

    assert texts == ["a", "b", "b"]
    assert models[0].num_ready_verifiers == 1
    assert tokens.token_ids == (97, 98)


def test_errors_arrive_as_they_were_told() -> None:
    full = Answer(error=Overloaded("full", retry_after_seconds=2, quota="tokens_per_minute"))
    with FakeGateway(full, Answer("fine")) as gateway, paceline.Client(gateway.target) as client:
        with pytest.raises(Overloaded) as refused:
            client.generate("Hi")
        with pytest.raises(InvalidRequest):
            client.generate("")
        assert client.generate("Hi").text == "fine"

    assert (refused.value.quota, refused.value.retry_after_seconds) == ("tokens_per_minute", 2)


def test_a_loss_in_the_middle_is_survived() -> None:
    lost = Answer("Hel", error=Unavailable("killed", retry_after_seconds=0.01))
    with FakeGateway(lost) as gateway, paceline.Client(gateway.target) as client:
        gateway.add(Answer("lo"))
        events = list(client.stream("Hi"))
        asked = gateway.requests[1]

    assert "".join(event.text for event in events if isinstance(event, Delta)) == "Hello"
    assert list(asked.resume_token_ids) == list(map(ord, "Hel"))
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert summary.usage.completion_tokens == 5


def test_it_needs_neither_torch_nor_arrays() -> None:
    code = (
        "import sys, paceline.testing;"
        "sys.exit(bool({'torch', 'numpy', 'tokenizers', 'jwt', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 own code

    assert done.returncode == 0
