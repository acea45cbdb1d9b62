"""Text from token ids as they arrive: single behaviours."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models

from gateway.detokenizer import Decoding
from tests.doubles.model_folders import byte_fallback_tokenizer, byte_level_tokenizer


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Return one token id per byte, for a vocabulary with all byte tokens."""
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]
    return [token_id for token_id in ids if token_id is not None]


def test_a_character_over_several_tokens_comes_out_once_it_is_whole() -> None:
    """B085."""
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("😀", add_special_tokens=False).ids
    detokenizer = Decoding(tokenizer).detokenizer(skip_special_tokens=True)

    pieces = [detokenizer.push([token_id]) for token_id in token_ids]

    assert len(token_ids) == 4
    assert pieces == ["", "", "", "😀"]


def test_a_character_cut_off_at_the_end_comes_out_as_the_full_decode_gives_it() -> None:
    """B085: a cut inside a character is no error."""
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("ab😀", add_special_tokens=False).ids[:-1]
    detokenizer = Decoding(tokenizer).detokenizer(skip_special_tokens=True)

    text = detokenizer.push(token_ids) + detokenizer.flush()

    assert text == tokenizer.decode(token_ids) == "ab\ufffd"


def test_special_tokens_are_skipped_unless_asked_for() -> None:
    tokenizer = byte_level_tokenizer()
    token_ids = [*tokenizer.encode("a", add_special_tokens=False).ids, 2]
    decoding = Decoding(tokenizer)

    assert decoding.detokenizer(skip_special_tokens=True).push(token_ids) == "a"
    assert decoding.detokenizer(skip_special_tokens=False).push(token_ids) == "a<eos>"


def test_a_run_of_byte_tokens_is_decided_when_it_ends() -> None:
    """B085: the full decode spoils a whole run for one bad byte, so nothing of it comes early."""
    tokenizer = byte_fallback_tokenizer()
    detokenizer = Decoding(tokenizer).detokenizer(skip_special_tokens=True)
    word = tokenizer.token_to_id("\u2581the")
    assert word is not None

    assert detokenizer.push(ids_of_bytes(tokenizer, "你".encode())) == ""
    assert detokenizer.push([word]) == "你 the"
    assert detokenizer.push([*ids_of_bytes(tokenizer, b"\xe4\xbd"), word]) == "\ufffd\ufffd the"


def test_ids_that_no_token_has_are_left_out() -> None:
    """B114: rows beyond the tokenizer are padding."""
    tokenizer = byte_level_tokenizer()
    detokenizer = Decoding(tokenizer).detokenizer(skip_special_tokens=True)

    assert detokenizer.push([100_000]) + detokenizer.flush() == tokenizer.decode([100_000]) == ""


def test_an_unusual_decoder_is_served_through_a_window() -> None:
    vocab = {"<unk>": 0, "play": 1, "##ing": 2, "now": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, "<unk>"))
    tokenizer.decoder = decoders.WordPiece()
    detokenizer = Decoding(tokenizer).detokenizer(skip_special_tokens=True)

    pieces = [detokenizer.push([token_id]) for token_id in (1, 2, 3)]

    assert pieces == ["play", "ing", " now"]
    assert detokenizer.flush() == ""
