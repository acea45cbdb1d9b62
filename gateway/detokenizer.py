"""
Turning token ids into text as they arrive, equal to decoding the whole at once.

The text continues a prompt, so what a decoder does at the very start of a text (dropping one
leading space) is not done. Stop strings: the sibling.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """
    One output's text.

    The texts of all pushes and of the final flush, joined, are the decoding of all token ids. Text
    is returned as soon as no later token can change it. A push costs time in its own tokens only.
    """

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that became certain."""

    def flush(self) -> str:
        """Return what was still uncertain, such as a character cut off at the end."""


class Decoding:
    """How a tokenizer turns ids into text; makes a detokenizer for each output."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._pieces = _pieces_of(tokenizer)

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """Return a fresh detokenizer."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        match self._pieces:
            case _BytePieces():
                return _ByteDetokenizer(self._pieces, skipped)
            case _TextPieces():
                return _FallbackDetokenizer(self._pieces, skipped)
            case None:
                return _WindowDetokenizer(self._tokenizer, skipped)


class _BytePieces(dict[int, bytes]):
    """The bytes of each token of a byte-level vocabulary, found out when first asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._byte_of = _byte_alphabet()

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._encode(token_id)
        return piece

    def _encode(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            return bytes(self._byte_of[character] for character in token)
        except KeyError:
            return token.encode()


class _TextPieces(dict[int, str | int]):
    """The text of each token of a vocabulary with byte fallback; an int is a single byte."""

    def __init__(
        self, tokenizer: Tokenizer, replacements: Sequence[tuple[str, str]], *, has_bytes: bool
    ) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._replacements = replacements
        self._has_bytes = has_bytes

    def __missing__(self, token_id: int) -> str | int:
        piece = self[token_id] = self._decode(token_id)
        return piece

    def _decode(self, token_id: int) -> str | int:
        token = self._tokenizer.id_to_token(token_id) or ""
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        byte = _BYTE_TOKEN.fullmatch(token) if self._has_bytes else None
        return int(byte[1], 16) if byte else token


class _ByteDetokenizer:
    def __init__(self, pieces: _BytePieces, skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._rest = b""
        """The beginning of a character, at most three bytes."""

    def push(self, token_ids: Iterable[int]) -> str:
        pieces, skipped = self._pieces, self._skipped
        content = self._rest + b"".join([pieces[i] for i in token_ids if i not in skipped])
        text, num_read = codecs.utf_8_decode(content, "replace", False)
        self._rest = content[num_read:]
        return text

    def flush(self) -> str:
        rest, self._rest = self._rest, b""
        return rest.decode(errors="replace")


class _FallbackDetokenizer:
    """A run of byte tokens is decoded as a whole: one bad byte spoils all of the run."""

    def __init__(self, pieces: _TextPieces, skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._run = bytearray()

    def push(self, token_ids: Iterable[int]) -> str:
        texts: list[str] = []
        for token_id in token_ids:
            if token_id in self._skipped:
                continue
            piece = self._pieces[token_id]
            if isinstance(piece, int):
                self._run.append(piece)
            elif piece:
                if self._run:
                    texts.append(self.flush())
                texts.append(piece)
        return "".join(texts)

    def flush(self) -> str:
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = REPLACEMENT * len(self._run)
        self._run.clear()
        return text


class _WindowDetokenizer:
    """For any other decoder: decodes a short window of ids before and after each new one."""

    MAX_PENDING = 16
    """A character never takes this many tokens; beyond, the text is taken as it is."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join(self._push(i) for i in token_ids if i not in self._skipped)

    def flush(self) -> str:
        text = self._decode(self._context + self._pending)[len(self._context_text) :]
        self._advance()
        return text

    def _push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        is_open = text.endswith(REPLACEMENT) or len(text) <= len(self._context_text)
        if is_open and len(self._pending) < self.MAX_PENDING:
            return ""
        new = text[len(self._context_text) :]
        self._advance()
        return new

    def _advance(self) -> None:
        self._context, self._pending = self._pending or self._context, []
        self._context_text = self._decode(self._context)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _pieces_of(tokenizer: Tokenizer) -> _BytePieces | _TextPieces | None:
    stages = _stages(tokenizer)
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"]:
        return _BytePieces(tokenizer)
    if kinds == ["Metaspace"]:
        return _TextPieces(tokenizer, [(stages[0]["replacement"], " ")], has_bytes=False)
    if "ByteFallback" not in kinds:
        return None
    at = kinds.index("ByteFallback")
    before, after = stages[:at], stages[at + 1 :]
    if not all(map(_is_plain_replacement, before)) or not all(map(_acts_at_start_only, after)):
        return None
    replacements = [(stage["pattern"]["String"], stage["content"]) for stage in before]
    return _TextPieces(tokenizer, replacements, has_bytes=True)


def _stages(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    stages: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return stages


def _is_plain_replacement(stage: dict[str, Any]) -> bool:
    return stage["type"] == "Replace" and "String" in stage["pattern"]


def _acts_at_start_only(stage: dict[str, Any]) -> bool:
    kind: str = stage["type"]
    return kind == "Fuse" or (kind == "Strip" and not stage["stop"])


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for (GPT-2's map)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }
