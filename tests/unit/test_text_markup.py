"""Markup that a model writes (tool calls, thoughts) is text like any other: nothing is parsed."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from gateway.detokenizer import Decoding
from gateway.stop_strings import StopStrings
from gateway.text_assembler import TextAssembler
from tests.doubles.model_folders import byte_level_tokenizer

CALLS = (
    'I look it up.<tool_call>{"name": "a", "arguments": {"x": "1"}}</tool_call>'
    '<tool_call>{"name": "b", "arguments": {"y": "\u00e9\U0001f600"}}</tool_call>'
)
THOUGHT = "<think>first this</think>then that"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level tokenizer."""
    return byte_level_tokenizer()


def _assembler(tokenizer: Tokenizer, *stop: str) -> TextAssembler:
    detokenizer = Decoding(tokenizer).detokenizer(skip_special_tokens=True)
    stops = StopStrings(stop, include_stop=False) if stop else None
    return TextAssembler(detokenizer, stops, min_tokens=0)


@pytest.mark.parametrize("stop", [(), ("never said",)])
def test_tool_calls_pass_through_whatever_the_chunks(
    tokenizer: Tokenizer, stop: tuple[str, ...]
) -> None:
    """B087: one answer replayed with 50 random splits gives the same text."""
    rng = random.Random(7)  # noqa: S311
    token_ids = tokenizer.encode(CALLS, add_special_tokens=False).ids
    texts = set()
    for _ in range(50):
        assembler, begin, pieces = _assembler(tokenizer, *stop), 0, []
        while begin < len(token_ids):
            end = begin + rng.randrange(1, 9)
            pieces.append(assembler.push(token_ids[begin:end]).text)
            begin = end
        texts.add("".join(pieces) + assembler.flush().text)

    assert texts == {CALLS}


def test_text_before_and_after_a_marker_is_delivered_at_each_place_in_a_run(
    tokenizer: Tokenizer,
) -> None:
    """B088."""
    token_ids = tokenizer.encode(THOUGHT, add_special_tokens=False).ids
    for width in range(1, len(token_ids) + 1):
        for offset in range(width):
            assembler = _assembler(tokenizer)
            text = assembler.push(token_ids[:offset]).text
            for begin in range(offset, len(token_ids), width):
                text += assembler.push(token_ids[begin : begin + width]).text

            assert text + assembler.flush().text == THOUGHT
