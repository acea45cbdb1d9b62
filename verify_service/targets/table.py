"""
A target that is a function of the tokens before it, for tests and dry runs.

Its "KV" is the token ids themselves, read back through block tables and parents as a real cache
would be, so a wrong slot, position or rewind changes its output or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from paceline.errors import EngineFailed
from paceline.noise import mix64
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan, TargetInfo

LogitsFunction = Callable[[tuple[int, ...]], Sequence[float]]
"""From all tokens so far to the next token's logits  # [vocab_size]."""

_NOTHING = -1


class TableTarget:
    """A target whose logits a function gives."""

    def __init__(
        self,
        logits_of: LogitsFunction,
        *,
        vocab_size: int,
        context_length: int = 4096,
        eos_token_ids: tuple[int, ...] = (),
        num_token_ids: int | None = None,
    ) -> None:
        self._logits_of = logits_of
        self._info = TargetInfo(
            name="table",
            engine="table",
            vocab_size=vocab_size,
            num_token_ids=num_token_ids or vocab_size,
            context_length=context_length,
            eos_token_ids=eos_token_ids,
            tokenizer_fingerprint="",
        )
        self._block_size = 0
        self._slots: list[int] = []

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._info

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Create the slots."""
        self._block_size = block_size
        self._slots = [_NOTHING] * (num_blocks * block_size)

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Store every row's token and return the function's logits of the wanted rows."""
        for span in batch.spans:
            for row, token_id in enumerate(span.token_ids):
                self._slots[self._slot(span, span.context_len + row)] = token_id
        rows = [
            list(self._logits_of(self._path(span, row)))
            for span in batch.spans
            for row in span.logit_rows
        ]
        return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), self._info.vocab_size)

    def move_kv(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy tokens between slots, as if all were read first."""
        tokens = [self._slots[source] for source in sources]
        for token_id, destination in zip(tokens, destinations, strict=True):
            self._slots[destination] = token_id

    def _path(self, span: RowSpan, row: int) -> tuple[int, ...]:
        ancestors: list[int] = []
        node = row
        while node != CONTEXT:
            ancestors.append(self._slots[self._slot(span, span.context_len + node)])
            node = span.parents[node]
        context = [self._slots[self._slot(span, index)] for index in range(span.context_len)]
        path = (*context, *reversed(ancestors))
        if _NOTHING in path or span.positions[row] != len(path) - 1:
            raise EngineFailed(f"row {row} reads a slot never written or has a wrong position")
        return path

    def _slot(self, span: RowSpan, index: int) -> int:
        block = span.block_table[index // self._block_size]
        return block * self._block_size + index % self._block_size


def markov_logits(vocab_size: int, *, seed: int = 0, order: int = 2) -> LogitsFunction:
    """Return a fixed random function of the last ``order`` tokens; greedy output soon repeats."""

    def logits_of(tokens: tuple[int, ...]) -> list[float]:
        state = seed
        for token_id in tokens[-order:]:
            state = mix64(state * 31 + token_id + 1)
        return [
            (mix64(state + token_id * 0x9E3779B97F4A7C15) >> 40) / 2.0**21
            for token_id in range(vocab_size)
        ]

    return logits_of
