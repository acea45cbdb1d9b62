"""Who runs in a step: chunks, priorities, preemption, and that everyone gets there in the end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from verify_service.engine.block_manager import BlockManager
from verify_service.engine.sampling import TokenLimits
from verify_service.engine.scheduler import Limits, Scheduler, Turn
from verify_service.engine.sequence import Drafting, Phase, Request, Sequence


class Crank:
    """A scheduler and the least that an engine does after it: store rows, add tokens, end."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_running: int = 4,
        max_prefill_rows: int = 8,
    ) -> None:
        self.blocks = BlockManager(num_blocks, block_size)
        self.scheduler = Scheduler(Limits(max_running, 99, max_prefill_rows), self.blocks)
        self.ended: list[int] = []
        self._clock = 0.0

    def add(
        self,
        sequence_id: int,
        prompt_len: int,
        *,
        max_tokens: int = 50,
        priority: int = 0,
        lockstep: bool = False,
    ) -> Sequence:
        """Queue a sequence whose tokens nobody else has."""
        request = Request(
            sequence_id,
            tuple(sequence_id * 1000 + index for index in range(prompt_len)),
            limits=TokenLimits(max_tokens=max_tokens),
            priority=priority,
            lockstep=lockstep,
        )
        self._clock += 1
        sequence = Sequence(request, Drafting(), self._clock, 8)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[Turn]:
        """Schedule, check every promise of a turn, and do its work."""
        turns = self.scheduler.schedule()
        self.blocks.check_integrity([each.block_table for each in self.scheduler])
        assert len({turn.sequence.sequence_id for turn in turns}) == len(turns)
        for turn in turns:
            sequence = turn.sequence
            slots = len(sequence.block_table) * self.blocks.block_size
            assert sequence.phase is Phase.RUNNING
            assert 1 <= turn.num_rows <= sequence.num_pending_rows
            assert sequence.num_stored + turn.num_rows <= slots
        for turn in turns:
            self._work(turn)
        return turns

    def _work(self, turn: Turn) -> None:
        sequence, ends = turn.sequence, turn.reaches_end
        sequence.num_stored += turn.num_rows
        if not ends:
            return
        sequence.has_emitted = True
        sequence.pending_verdicts = max(0, sequence.pending_verdicts - 1)
        sequence.token_ids.append(sequence.sequence_id * 1000 + 999)
        if sequence.num_emitted >= sequence.request.limits.max_tokens:
            self.scheduler.remove(sequence)
            self.ended.append(sequence.sequence_id)


def _rows(turns: list[Turn]) -> dict[int, int]:
    return {turn.sequence.sequence_id: turn.num_rows for turn in turns}


def test_long_prompts_delay_a_running_stream_by_one_chunk() -> None:
    """B077: the decoding sequence runs in every step, beside a bounded prefill."""
    crank = Crank(max_prefill_rows=8)
    crank.add(1, 3)
    crank.step()
    crank.add(2, 60)
    crank.add(3, 60)

    steps = [_rows(crank.step()) for _ in range(14)]

    assert all(rows[1] == 1 for rows in steps)
    assert all(sum(rows.values()) <= 1 + 8 + 1 for rows in steps)
    assert [rows.get(2, 0) for rows in steps[:9]] == [8, 8, 8, 8, 8, 8, 8, 4, 1]
    assert [rows.get(3, 0) for rows in steps[:9]] == [0, 0, 0, 0, 0, 0, 0, 4, 8]


def test_prompts_that_end_at_and_after_a_chunk_border() -> None:
    """B076: a last chunk of one row ends the prefill like any other."""
    chunks: dict[int, list[int]] = {}
    for length in (7, 8, 9, 17):
        crank = Crank(max_prefill_rows=8)
        sequence = crank.add(1, length)
        chunks[length] = []
        while not sequence.has_emitted:
            chunks[length].append(_rows(crank.step())[1])

    assert chunks == {7: [7], 8: [8], 9: [8, 1], 17: [8, 8, 1]}


def test_one_budget_is_shared_by_the_prompts_of_a_step() -> None:
    """B075: filled exactly, never exceeded."""
    crank = Crank(max_prefill_rows=10)
    for sequence_id, length in ((1, 3), (2, 4), (3, 4), (4, 9)):
        crank.add(sequence_id, length)

    assert _rows(crank.step()) == {1: 3, 2: 4, 3: 3}
    assert _rows(crank.step()) == {1: 1, 2: 1, 3: 1, 4: 9}


def test_more_important_sequences_start_first_and_equals_in_order() -> None:
    crank = Crank(max_running=1, max_prefill_rows=99)
    crank.add(1, 2, max_tokens=1)
    crank.add(2, 2, max_tokens=1, priority=1)
    crank.add(3, 2, max_tokens=1, priority=2)
    crank.add(4, 2, max_tokens=1, priority=2)

    for _ in range(4):
        crank.step()

    assert crank.ended == [3, 4, 2, 1]


def test_no_more_sequences_run_than_allowed() -> None:
    crank = Crank(max_running=2)
    for sequence_id in range(1, 6):
        crank.add(sequence_id, 2)

    for _ in range(4):
        crank.step()

    assert [each.sequence_id for each in crank.scheduler.running] == [1, 2]
    assert [each.sequence_id for each in crank.scheduler.waiting] == [3, 4, 5]


def test_without_blocks_the_least_important_and_youngest_waits() -> None:
    crank = Crank(num_blocks=9, block_size=1, max_prefill_rows=99)
    first = crank.add(1, 2, priority=1)
    second = crank.add(2, 2)
    third = crank.add(3, 2)
    for _ in range(3):
        crank.step()

    assert (first.num_preemptions, second.num_preemptions, third.num_preemptions) == (0, 0, 1)
    assert third.phase is Phase.WAITING
    assert third.block_table == []
    assert len(third.token_ids) > 2


def test_sequence_preempted_after_it_got_its_turn_does_not_run() -> None:
    """A more important prefill may need the blocks of one that was to decode in the same step."""
    crank = Crank(num_blocks=12, block_size=1, max_prefill_rows=2)
    minor = crank.add(1, 2)
    crank.step()
    major = crank.add(2, 8, priority=1)

    steps = [_rows(crank.step()) for _ in range(4)]

    assert steps == [{1: 1, 2: 2}, {1: 1, 2: 2}, {1: 1, 2: 2}, {2: 2}]
    assert minor.phase is Phase.WAITING
    assert major.has_emitted


def test_waiting_sequence_holds_no_cached_prefix() -> None:
    """What matched is given back when the rest does not fit."""
    crank = Crank(num_blocks=8, block_size=2, max_running=2)
    published: list[int] = []
    crank.blocks.grow(published, 4)
    crank.blocks.publish(published, [2000, 2001, 2002, 2003], 4, "\0")
    crank.blocks.free(published)
    crank.add(1, 8)

    crank.step()
    crank.add(2, 9)
    crank.step()

    assert [each.sequence_id for each in crank.scheduler.waiting] == [2]
    assert crank.blocks.num_in_use == len(crank.scheduler.running[0].block_table)


def test_preempted_sequence_returns_before_younger_ones() -> None:
    crank = Crank(num_blocks=9, block_size=1, max_prefill_rows=99)
    crank.add(1, 2, max_tokens=6)
    crank.add(2, 2, max_tokens=6)
    preempted = crank.add(3, 2, max_tokens=6)
    while not preempted.num_preemptions:
        crank.step()
    crank.add(4, 1, max_tokens=1)

    while len(crank.ended) < 4:
        crank.step()

    assert crank.ended[:2] == [1, 2]
    assert preempted.num_emitted == 6


def test_resumed_sequence_finds_its_own_published_blocks() -> None:
    crank = Crank(num_blocks=8, block_size=2)
    sequence = crank.add(1, 5)
    crank.step()
    crank.blocks.publish(sequence.block_table, sequence.token_ids, sequence.num_stored, "\0")
    crank.scheduler._preempt(sequence)

    turns = crank.step()

    assert _rows(turns) == {1: 2}
    assert turns[0].is_decode is False


def test_cached_prompt_tokens_are_counted_at_the_first_admission_only() -> None:
    crank = Crank(block_size=2)
    table: list[int] = []
    prompt = [1000, 1001, 1002, 1003, 1004]
    crank.blocks.grow(table, 4)
    crank.blocks.publish(table, prompt, 4, "\0")
    crank.blocks.free(table)

    sequence = crank.add(1, 5)
    turns = crank.step()

    assert sequence.num_cached_prompt_tokens == 4
    assert _rows(turns) == {1: 1}


def test_lockstep_sequence_waits_for_proposals() -> None:
    crank = Crank()
    sequence = crank.add(1, 5, lockstep=True)

    assert _rows(crank.step()) == {1: 4}
    assert crank.step() == []
    sequence.pending_verdicts = 1
    assert _rows(crank.step()) == {1: 1}
    assert crank.step() == []


def test_lockstep_sequence_with_a_prompt_of_one_token_needs_no_prefill() -> None:
    crank = Crank()
    sequence = crank.add(1, 1, lockstep=True)

    assert crank.step() == []
    assert sequence.phase is Phase.RUNNING
    sequence.pending_verdicts = 1
    assert _rows(crank.step()) == {1: 1}


def test_removing_a_sequence_frees_its_blocks_in_any_phase() -> None:
    """B045: waiting, in prefill or decoding."""
    crank = Crank(max_running=2, max_prefill_rows=4)
    decoding, prefilling, waiting = crank.add(1, 2), crank.add(2, 30), crank.add(3, 2)
    crank.step()
    assert (prefilling.phase, waiting.phase) == (Phase.RUNNING, Phase.WAITING)

    for sequence in (waiting, prefilling, decoding):
        crank.scheduler.remove(sequence)

    assert crank.blocks.num_in_use == 0
    assert crank.step() == []


@settings(max_examples=150, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2)),
        min_size=1,
        max_size=7,
    ),
    block_size=st.integers(1, 5),
    max_running=st.integers(1, 4),
    max_prefill_rows=st.integers(1, 12),
    spare_blocks=st.integers(0, 6),
    arrivals=st.lists(st.integers(0, 6), min_size=7, max_size=7),
)
def test_everyone_ends_however_scarce_blocks_are(
    prompts: list[tuple[int, int, int]],
    block_size: int,
    max_running: int,
    max_prefill_rows: int,
    spare_blocks: int,
    arrivals: list[int],
) -> None:
    """No deadlock and no endless preemption, if each sequence fits alone."""
    longest = max(prompt_len + max_tokens for prompt_len, max_tokens, _ in prompts)
    crank = Crank(
        num_blocks=-(-longest // block_size) + spare_blocks,
        block_size=block_size,
        max_running=max_running,
        max_prefill_rows=max_prefill_rows,
    )

    for sequence_id, (prompt_len, max_tokens, priority) in enumerate(prompts, start=1):
        crank.add(sequence_id, prompt_len, max_tokens=max_tokens, priority=priority)
        for _ in range(arrivals[sequence_id - 1]):
            crank.step()
    for _ in range(3000):
        if not list(crank.scheduler):
            break
        crank.step()

    assert sorted(crank.ended) == list(range(1, len(prompts) + 1))
    assert crank.blocks.num_in_use == 0
