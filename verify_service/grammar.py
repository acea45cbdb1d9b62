"""Constraints from JSON Schemas, regular expressions, grammars and choices, through llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from paceline.errors import ConfigurationError, InvalidRequest
from paceline.v1 import types_pb2

MAX_GRAMMAR_CHARS = 256 * 1024
INITIAL_LEXER_FUEL, STEP_LEXER_FUEL = 250_000, 50_000
"""A quarter of the library's own: the engine's thread pays for some of it, and nested
repetitions that used it all up stalled every sequence for seconds. Schemas of 2 000 properties and
enumerations of 9 000 texts stay far below."""
_TOO_COMPLEX = frozenset({"ParserTooComplex", "LexerTooComplex"})
JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,24}"
"""Between JSON tokens; bounded, or a model that likes blanks would never come to an end."""


class GrammarConstraint:
    """One sequence's position in a compiled grammar."""

    def __init__(self, matcher: LLMatcher, num_token_ids: int) -> None:
        """The matcher has made a mask already: what that takes is then in every copy."""
        self._matcher = matcher
        self._fresh = matcher.deep_copy()
        self._committed: list[int] = []
        self._num_token_ids = num_token_ids
        self._bits = allocate_token_bitmask(1, num_token_ids)

    def mask(self, path: Sequence[int]) -> torch.Tensor:
        """Return which ids may follow the committed tokens and ``path``; none in a dead end."""
        num_consumed = self._matcher.try_consume_tokens(list(path))
        fill_next_token_bitmask(self._matcher, self._bits)
        if self._matcher.is_error():
            self._forget_error()
            return torch.zeros(self._num_token_ids, dtype=torch.bool)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        self._matcher.rollback(num_consumed)
        return torch.from_numpy(allowed[: self._num_token_ids].astype(bool))

    def num_allowed(self, path: Sequence[int]) -> int:
        """Return how many leading tokens of ``path`` may follow the committed tokens."""
        return int(self._matcher.validate_tokens(list(path)))

    def forced(self) -> tuple[int, ...]:
        """Return tokens that spell what has to follow now; empty where there is a choice."""
        return tuple(self._matcher.compute_ff_tokens())

    def commit(self, token_ids: Sequence[int]) -> None:
        """Advance along newly committed tokens."""
        self._committed.extend(token_ids)
        self._matcher.try_consume_tokens(list(token_ids))

    def _forget_error(self) -> None:
        # A dead end behind a draft would otherwise end the committed tokens too: errors stay.
        self._matcher = self._fresh.deep_copy()
        self._matcher.try_consume_tokens(self._committed)


class GrammarCompiler:
    """
    Makes constraints for one tokenizer; thread-safe, and slow enough for a thread of its own.

    To make one takes seconds, in which no other thread of the process runs: it belongs to a
    service's start. Raises ``ConfigurationError`` for a tokenizer that cannot be read.
    """

    def __init__(
        self, tokenizer_json: Path, num_token_ids: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._num_token_ids = num_token_ids
        try:
            text = tokenizer_json.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{tokenizer_json}: {_one_line(str(error))}") from None
        eos_token = list(eos_token_ids)
        try:
            self._tokenizer = LLTokenizer(text, n_vocab=num_token_ids, eos_token=eos_token)
        except ValueError as error:
            raise ConfigurationError(f"{tokenizer_json}: {_one_line(str(error))}") from None

    def compile(self, message: types_pb2.StructuredOutput) -> GrammarConstraint:
        """
        Return a fresh constraint.

        Raises ``InvalidRequest`` naming the part of ``structured_output`` that cannot be compiled.
        """
        kind = message.WhichOneof("constraint")
        field = f"structured_output.{kind or 'constraint'}"
        if kind is None:
            raise InvalidRequest(f"{field} is not set; set one of its kinds", field=field)
        if message.ByteSize() > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(f"{field} is above {MAX_GRAMMAR_CHARS} characters", field=field)
        try:
            limits = LLParserLimits(
                initial_lexer_fuel=INITIAL_LEXER_FUEL,
                step_lexer_fuel=STEP_LEXER_FUEL,
                verbose_errors=False,
            )
            grammar = _grammar(message, kind)
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        except ValueError as error:
            raise InvalidRequest(f"{field}: {_one_line(str(error))}", field=field) from None
        if matcher.is_error():
            raise InvalidRequest(f"{field}: {_one_line(matcher.get_error())}", field=field)
        # What nothing can fulfil shows where the first token is asked for, not before.
        bits = allocate_token_bitmask(1, self._num_token_ids)
        fill_next_token_bitmask(matcher, bits)
        if matcher.stop_reason() in _TOO_COMPLEX:
            raise InvalidRequest(f"{field} is too complex; make it smaller", field=field)
        if matcher.is_error() or not bits.any():
            raise InvalidRequest(f"{field}: no text can be of it; correct it", field=field)
        return GrammarConstraint(matcher, self._num_token_ids)


def _grammar(message: types_pb2.StructuredOutput, kind: str) -> str:
    match kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(
                message.json_schema, overrides={"whitespace_pattern": JSON_WHITESPACE}
            )
        case "regex":
            return LLMatcher.grammar_from_regex(message.regex)
        case "grammar":
            return LLMatcher.grammar_from_lark(message.grammar)
        case _:
            if not message.choice.options:
                raise ValueError("options is empty; name at least one")
            options = " | ".join(json.dumps(option) for option in message.choice.options)
            # As one terminal: as rules, more than 2 000 are above the parser's own limit.
            return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {options}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
