"""A fixed number of streams on a ``VirtualLine``: whoever ends is replaced at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.virtual_line import POOL, VirtualLine
from paceline.noise import mix64
from verify_service.engine.sampling import Fallback, TokenLimits
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.steps import CancelSequence, StepOutput, Submit
from verify_service.targets.simulated import VOCAB_SIZE

DRAFTED: Final = Drafting(POOL)
PLAIN: Final = Drafting(fallback=Fallback.REQUESTED)

PROMPT_TOKENS: Final = (128, 384)
OUTPUT_TOKENS: Final = (128, 384)


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a stretch of virtual time."""

    seconds: float
    num_tokens: int
    num_steps: int
    num_sequence_steps: int
    """Steps that emitted, counted once per sequence."""
    num_drafted: int
    host_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Goodput: emitted tokens of all streams; drafts that were rejected are none."""
        return self.num_tokens / self.seconds

    @property
    def tokens_per_second_with_host(self) -> float:
        """The same if this machine's engine time came on top of every step."""
        return self.num_tokens / (self.seconds + self.host_seconds)

    @property
    def acceptance_length(self) -> float:
        """Tokens per step and sequence."""
        return self.num_tokens / max(self.num_sequence_steps, 1)

    @property
    def nodes_per_sequence(self) -> float:
        """Verified nodes per step and sequence."""
        return self.num_drafted / max(self.num_sequence_steps, 1)

    @property
    def step_milliseconds(self) -> float:
        """Mean virtual time of a step."""
        return 1e3 * self.seconds / max(self.num_steps, 1)

    @property
    def host_milliseconds(self) -> float:
        """Mean CPU time of this machine's engine per step."""
        return 1e3 * self.host_seconds / max(self.num_steps, 1)


class ClosedLoop:
    """Streams with prompts and answers of mixed lengths, all drawn from their ids."""

    def __init__(self, line: VirtualLine, *, drafting: Drafting = DRAFTED, seed: int = 0) -> None:
        self.line = line
        self.drafting = drafting
        self._seed = seed
        self._next_id = 1
        self._wanted = 0
        self.streams: dict[int, None] = {}

    def resize(self, num_streams: int, *, first_id: int | None = None) -> None:
        """Keep this many streams from now on; the youngest leave first. Ids may start afresh."""
        self._wanted = num_streams
        self._next_id = first_id or self._next_id
        while len(self.streams) > num_streams:
            sequence_id, _ = self.streams.popitem()
            self.line.apply(CancelSequence(sequence_id))
            self.ended(sequence_id)
        while len(self.streams) < num_streams:
            self.add(is_under_way=True)

    def add(self, *, is_under_way: bool = False) -> int:
        """Start a stream; one that is under way already has less to say, so that ends spread."""
        sequence_id, self._next_id = self._next_id, self._next_id + 1
        drawn = mix64(self._seed * 7919 + sequence_id)
        prompt_len = _between(PROMPT_TOKENS, drawn)
        max_tokens = _between(OUTPUT_TOKENS, mix64(drawn))
        if is_under_way:
            max_tokens = 16 + mix64(drawn + 1) % max_tokens
        prompt = tuple(mix64(drawn + index) % VOCAB_SIZE for index in range(prompt_len))
        request = Request(sequence_id, prompt, limits=TokenLimits(max_tokens=max_tokens))
        self.streams[sequence_id] = None
        self.line.apply(Submit(request, self.drafting_of(sequence_id)))
        return sequence_id

    def drafting_of(self, sequence_id: int) -> Drafting:
        """Return how a new stream drafts."""
        return self.drafting

    def ended(self, sequence_id: int) -> None:
        """Take notice of a stream's end."""

    def step(self) -> StepOutput:
        """Do one step and replace the streams that it ended."""
        output = self.line.step()
        for step in output.steps:
            if step.finish_reason is not None and step.sequence_id in self.streams:
                del self.streams[step.sequence_id]
                self.ended(step.sequence_id)
        while len(self.streams) < self._wanted:
            self.add()
        return output

    def run(self, num_tokens: int) -> Measured:
        """Step until this many tokens were emitted."""
        line = self.line
        started, host = line.clock(), line.host.seconds
        tokens = steps = sequence_steps = drafted = 0
        while tokens < num_tokens:
            output = self.step()
            steps += 1
            for step in output.steps:
                tokens += len(step.token_ids)
                drafted += step.num_drafted
                sequence_steps += bool(step.token_ids)
        return Measured(
            seconds=line.clock() - started,
            num_tokens=tokens,
            num_steps=steps,
            num_sequence_steps=sequence_steps,
            num_drafted=drafted,
            host_seconds=line.host.seconds - host,
        )


def _between(bounds: tuple[int, int], drawn: int) -> int:
    low, high = bounds
    return low + drawn % (high - low + 1)
