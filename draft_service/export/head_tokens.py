"""
Which tokens a drafter can propose: the most frequent ones, so that its output head is small.

The vocabulary cut of FR-Spec (Zhao et al. 2025): the target's own head stays whole, so nothing but
acceptance depends on the choice. It reads a tokenizer and texts, no weights.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from draft_service.onnx_manifest import count_token_ids
from paceline.errors import ConfigurationError

_MIN_COUNT = 2
"""Tokens seen more rarely tell no more than the tokenizer's own order."""

_OTHER_SCRIPT_PENALTY = 4
"""Without texts of their script, tokens beyond ASCII come this many times later."""

_SPACE_MARKS = str.maketrans({"\u2581": " ", "\u0120": " ", "\u010a": "\n", "\u0109": "\t"})
"""How sentencepiece and byte-level tokenizers write white space."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return a folder's tokenizer; raises ``ConfigurationError`` if it cannot be read."""
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigurationError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error


def most_frequent_tokens(
    folder: Path, num_tokens: int, always: Iterable[int], texts: Iterable[str]
) -> npt.NDArray[np.int64]:
    """
    Return the ids of a folder's most frequent tokens, in ascending order.

    Tokens of the texts come first, by count; then the others in the order in which the tokenizer
    has learned them. ``always`` (ends of text) are among them. All, if there are no more.
    """
    num_ids = count_token_ids(folder / "tokenizer.json")
    if num_tokens >= num_ids:
        return np.arange(num_ids, dtype=np.int64)
    ranks = _tokenizer_ranks(folder / "tokenizer.json", num_ids)
    tokenizer = load_tokenizer(folder)
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode(text, add_special_tokens=False).ids)
    for token_id, count in counts.items():
        if count >= _MIN_COUNT:
            ranks[token_id] = -count
    ranks[[token_id for token_id in always if token_id < num_ids]] = -np.inf
    return np.sort(np.argsort(ranks, kind="stable")[:num_tokens]).astype(np.int64)


def _tokenizer_ranks(path: Path, num_ids: int) -> npt.NDArray[np.float64]:
    """
    Return how late each token comes by the tokenizer's own order.

    Merged tokens are numbered in the order of their merges. Single characters may stand anywhere
    and are interleaved with them; special tokens, which no text has, come last.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    model = content["model"]
    listed = model["vocab"]
    vocabulary = listed if isinstance(listed, dict) else {t[0]: i for i, t in enumerate(listed)}
    ranks = np.full(num_ids, np.inf)
    ordered = sorted(vocabulary.items(), key=lambda item: item[1])
    num_single = num_longer = 0
    for token, token_id in ordered:
        text = token.translate(_SPACE_MARKS)
        if len(text) == 1:
            rank, num_single = num_single * 8, num_single + 1
        else:
            rank, num_longer = num_longer, num_longer + 1
        ranks[token_id] = rank if text.isascii() else rank * _OTHER_SCRIPT_PENALTY
    special = [token["id"] for token in content.get("added_tokens", ()) if token.get("special")]
    ranks[special] = np.inf
    return ranks
