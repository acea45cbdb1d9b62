"""
What the engine asks of a target model, stated as guarantees. No model lives here.

KV addressing: the cache is ``num_blocks * block_size`` slots. The token with index ``i`` in a
sequence lives in slot ``block_table[i // block_size] * block_size + i % block_size``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

CONTEXT = -1
"""Parent of a row that continues the stored context directly."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """
    The rows of one sequence in a flattened batch.

    Row ``r`` (0-based within the span) sees the stored context, its ancestors and itself. It is
    stored at index ``context_len + r`` of the sequence, whatever its depth; its position is
    ``positions[r]`` (the same for siblings). ``parents[r] < r``, or ``CONTEXT``.
    A prefill chunk and a chain are spans with ``parents == (-1, 0, 1, ...)``.
    """

    token_ids: tuple[int, ...]  # [num_rows]
    positions: tuple[int, ...]  # [num_rows]
    parents: tuple[int, ...]  # [num_rows]
    context_len: int
    block_table: tuple[int, ...]
    logit_rows: tuple[int, ...]  # rows of this span whose logits are wanted, ascending

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether each row continues the row before it."""
        return self.parents == tuple(range(CONTEXT, self.num_rows - 1))


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """The rows of all sequences of one step, without padding."""

    spans: tuple[RowSpan, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows of all spans."""
        return sum(span.num_rows for span in self.spans)

    @property
    def num_logit_rows(self) -> int:
        """The number of rows whose logits are wanted."""
        return sum(len(span.logit_rows) for span in self.spans)


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What is fixed about a target model."""

    name: str
    engine: str
    vocab_size: int
    """Rows of the output head."""
    num_token_ids: int
    """Ids that the tokenizer knows; larger ones are padding and are never emitted."""
    context_length: int
    eos_token_ids: tuple[int, ...]
    tokenizer_fingerprint: str


class TargetModel(Protocol):
    """A causal language model over a paged KV cache that it owns."""

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        ...

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Create the KV cache; once, before the first ``forward``."""
        ...

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """
        Store the KV of every row and return float32 logits  # [num_logit_rows, vocab_size].

        Logit rows come in span order. A row's logits depend only on its own path: not on siblings,
        on the other spans or on the batch's shape (on CPU in float32: bit for bit). They are valid
        until the next call. A target with a device may return before that is done; whoever reads
        the logits waits.
        """
        ...

    def move_kv(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy the KV of slots ``sources`` to ``destinations``, as if all were read first."""
        ...


@runtime_checkable
class BestTokens(Protocol):
    """What a target adds that finds the largest logits for less than it takes to compute all."""

    def best_tokens(self, batch: FlatBatch) -> list[int | None] | None:
        """
        Do as ``forward`` does, and return the id with the largest logit  # [num_logit_rows].

        Of ids that the tokenizer knows; of equals the first; None where the largest is not finite
        or any is NaN. None at all, with nothing done, where ``forward`` has to be asked.
        """
        ...
