"""
Which sequences run in a step, and with how many committed rows. Policy only; no tensors, no trees.

Order: every decoding sequence gets its row; what is left of the prefill budget goes to sequences in
prefill and to new ones, by rank. So a long prompt delays running streams by one chunk at most.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from verify_service.engine.block_manager import BlockManager
from verify_service.engine.sequence import Phase, Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may use."""

    max_running: int
    max_waiting: int
    max_prefill_rows: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The committed rows that one sequence runs in this step."""

    sequence: Sequence
    num_rows: int
    is_decode: bool

    @property
    def reaches_end(self) -> bool:
        """Whether the last committed token is among the rows."""
        return self.sequence.num_pending_rows == self.num_rows


class Scheduler:
    """The waiting and running sequences of one engine."""

    def __init__(self, limits: Limits, blocks: BlockManager) -> None:
        self.limits = limits
        self.blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        """Both by rank."""

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over all sequences."""
        return iter([*self.running, *self.waiting])

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        insort(self.waiting, sequence, key=Sequence.rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks."""
        (self.waiting if sequence.phase is Phase.WAITING else self.running).remove(sequence)
        self.blocks.free(sequence.block_table)
        sequence.phase = Phase.FINISHED

    def schedule(self) -> list[Turn]:
        """Return who runs now; each has the blocks for its committed rows."""
        turns = self._decodes()
        budget = self.limits.max_prefill_rows
        for sequence in list(self.running):
            if sequence.phase is Phase.RUNNING and not sequence.is_decoding and budget > 0:
                num_rows = min(_prefill_rows(sequence), budget)
                if num_rows > 0 and self._make_room(sequence, sequence.num_stored + num_rows):
                    turns.append(Turn(sequence, num_rows, is_decode=False))
                    budget -= num_rows
        turns = [turn for turn in turns if turn.sequence.phase is Phase.RUNNING]
        turns.extend(self._admissions(budget))
        return turns

    def _decodes(self) -> list[Turn]:
        turns: list[Turn] = []
        for sequence in list(self.running):
            if sequence.phase is not Phase.RUNNING or not sequence.is_decoding:
                continue
            if sequence.request.lockstep and sequence.pending_verdicts == 0:
                continue
            if self._make_room(sequence, len(sequence.token_ids)):
                turns.append(Turn(sequence, 1, is_decode=True))
        return turns

    def _admissions(self, budget: int) -> Iterator[Turn]:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_running:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                return
            num_rows = min(_prefill_rows(sequence), budget)
            if num_rows == 0:
                continue
            self.blocks.grow(sequence.block_table, sequence.num_stored + num_rows)
            budget -= num_rows
            is_decode = sequence.is_decoding and sequence.has_emitted
            yield Turn(sequence, num_rows, is_decode=is_decode)

    def _admit(self, sequence: Sequence) -> bool:
        table = self.blocks.match_prefix(sequence.token_ids, sequence.salt)
        # Room for the whole of it and one more block, so that it does not preempt at once.
        if not self.blocks.can_grow(table, len(sequence.token_ids) + self.blocks.block_size):
            fits_alone = not self.running and self.blocks.can_grow(table, len(sequence.token_ids))
            if not fits_alone:
                self.blocks.free(table)
                return False
        sequence.block_table = table
        sequence.num_stored = len(table) * self.blocks.block_size
        sequence.num_published_blocks = len(table)
        if not sequence.has_emitted:
            sequence.num_cached_prompt_tokens = min(sequence.num_stored, sequence.prompt_len)
        sequence.phase = Phase.RUNNING
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=Sequence.rank)
        return True

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow a block table, preempting the lowest ranks; False: it was itself preempted."""
        while not self.blocks.can_grow(sequence.block_table, num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self.blocks.grow(sequence.block_table, num_tokens)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Send a sequence back to wait; its KV is computed again later."""
        self.blocks.free(sequence.block_table)
        sequence.num_stored = 0
        sequence.num_published_blocks = 0
        sequence.num_preemptions += 1
        sequence.phase = Phase.WAITING
        self.running.remove(sequence)
        self.add(sequence)


def _prefill_rows(sequence: Sequence) -> int:
    # A lockstep sequence keeps its last committed token for the first verification.
    return sequence.num_pending_rows - (1 if sequence.request.lockstep else 0)
