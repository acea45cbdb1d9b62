"""Streaming text equals decoding the whole: over tokenizers, random ids and random splits."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from gateway.detokenizer import Decoding
from paceline.model_folder import default_cache_dir
from tests.doubles.model_folders import byte_fallback_tokenizer, byte_level_tokenizer

TINY = Path(__file__).parents[1] / "models" / "tiny" / "tokenizer.json"


def metaspace_tokenizer() -> Tokenizer:
    """Return a tokenizer that marks spaces and has no bytes."""
    vocab = {"<unk>": 0, "\u2581the": 1, "cat": 2, "\u2581": 3, "s\u2581": 4}
    tokenizer = Tokenizer(models.WordLevel(vocab, "<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@cache
def load(name: str) -> Tokenizer:
    """Return a tokenizer by name, or skip the test where this machine has none."""
    made = {
        "byte-level": byte_level_tokenizer,
        "byte-fallback": byte_fallback_tokenizer,
        "metaspace": metaspace_tokenizer,
    }
    if name in made:
        return made[name]()
    found = [TINY] if name == "tiny" else sorted(default_cache_dir().glob("**/tokenizer.json"))
    if not found or not found[0].exists():
        pytest.skip(f"no {name} tokenizer on this machine")
    return Tokenizer.from_file(str(found[0]))


@cache
def decoding_of(name: str) -> Decoding:
    """Return how a tokenizer decodes; making it reads the whole vocabulary."""
    return Decoding(load(name))


NAMES = ["byte-level", "byte-fallback", "metaspace", "tiny", "converted"]


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    """Return ids whose tokens are parts of characters, which random ids would rarely hit."""
    emoji = tokenizer.encode("é你😀\u200d🏽 ", add_special_tokens=False).ids
    fallback = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    return [*emoji, *(token_id for token_id in fallback if token_id is not None)] or [0]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_pieces_joined_equal_the_full_decode(name: str, data: st.DataObject) -> None:
    """B085, B086: whatever the ids and wherever the runs are cut."""
    tokenizer = load(name)
    size = tokenizer.get_vocab_size()
    any_id = st.integers(0, size + 2) | st.sampled_from(byte_ids(tokenizer))
    token_ids = data.draw(st.lists(any_id, max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=6)))
    skip = data.draw(st.booleans())
    borders = [0, *cuts, len(token_ids)]
    detokenizer = decoding_of(name).detokenizer(skip_special_tokens=skip)

    pieces = [detokenizer.push(token_ids[begin:end]) for begin, end in pairwise(borders)]
    text = "".join(pieces) + detokenizer.flush()

    assert text == continuation(tokenizer, token_ids, skip=skip)


@pytest.mark.parametrize("name", NAMES)
def test_every_single_token_decodes_as_the_tokenizer_says(name: str) -> None:
    tokenizer = load(name)
    decoding = decoding_of(name)

    for token_id in range(min(tokenizer.get_vocab_size(), 20_000)):
        detokenizer = decoding.detokenizer(skip_special_tokens=False)
        text = detokenizer.push([token_id]) + detokenizer.flush()
        assert text == continuation(tokenizer, [token_id], skip=False), token_id


def continuation(tokenizer: Tokenizer, token_ids: list[int], *, skip: bool) -> str:
    """Return the decoding of ids as the continuation of a text, not as its start."""
    anchor = tokenizer.encode("cat" if tokenizer.token_to_id("cat") else "b").ids[:1] or [2]
    before = tokenizer.decode(anchor, skip_special_tokens=skip)
    whole = tokenizer.decode([*anchor, *token_ids], skip_special_tokens=skip)
    return whole[len(before) :]
