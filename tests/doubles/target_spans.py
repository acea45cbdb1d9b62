"""Random spans for target tests, and a sequence that is decoded span by span."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verify_service.targets.target import CONTEXT, RowSpan

BLOCK_SIZE = 4


@dataclass(slots=True)
class SpanSource:
    """One sequence with its stored tokens and the blocks that it may use."""

    block_table: tuple[int, ...]
    stored: list[int] = field(default_factory=list)

    def chain(self, token_ids: Sequence[int]) -> RowSpan:
        """Return a span that appends ``token_ids``, which count as stored from then on."""
        span = self.tree(token_ids, range(CONTEXT, len(token_ids) - 1))
        self.stored.extend(token_ids)
        return span

    def slot(self, index: int) -> int:
        """Return the slot of the token with this index."""
        return self.block_table[index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE

    def tree(self, token_ids: Sequence[int], parents: Sequence[int]) -> RowSpan:
        """Return a span over the stored tokens, which it leaves as they are."""
        context_len = len(self.stored)
        positions: list[int] = []
        for parent in parents:
            positions.append(context_len if parent == CONTEXT else positions[parent] + 1)
        return RowSpan(
            token_ids=tuple(token_ids),
            positions=tuple(positions),
            parents=tuple(parents),
            context_len=context_len,
            block_table=self.block_table,
            logit_rows=tuple(range(len(token_ids))),
        )


def path_rows(span: RowSpan, row: int) -> tuple[int, ...]:
    """Return the rows from the context down to ``row``."""
    rows = [row]
    while span.parents[rows[-1]] != CONTEXT:
        rows.append(span.parents[rows[-1]])
    return tuple(reversed(rows))


def random_tree(rng: random.Random, num_rows: int) -> tuple[int, ...]:
    """Return parents; every row continues the context or any row before it."""
    return tuple(rng.randint(CONTEXT, row - 1) for row in range(num_rows))


def with_logit_rows(span: RowSpan, rows: Sequence[int]) -> RowSpan:
    """Return ``span`` with only these rows' logits wanted."""
    return replace(span, logit_rows=tuple(rows))


def random_block_table(rng: random.Random, free: list[int], num_blocks: int) -> tuple[int, ...]:
    """Take blocks out of ``free``: sometimes a run, sometimes scattered."""
    if rng.random() < 0.5:
        rng.shuffle(free)
    taken = tuple(free[:num_blocks])
    del free[:num_blocks]
    return taken
