"""
A target without a model: its steps take as long as a roofline says, its tokens are a hash of what
stands before them. It runs under the real engine, so 512 streams of a 70B model fit on a laptop.

The next token depends on the last one and its position alone. A drafter can compute it too
(``TokenStream``) and agree with it as often as a trace or a model of acceptance says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.noise import GOLDEN, MIX1, MIX2, mix64
from verify_service.targets.roofline import Roofline, Work
from verify_service.targets.target import FlatBatch, RowSpan, TargetInfo

VOCAB_SIZE = 64
PEAK_LOGIT = 100.0
"""Far above what the shared noise could add: every temperature up to 4 gives the same tokens."""


class Clock(Protocol):
    """Tells the time and lets it pass."""

    def __call__(self) -> float:
        """Return the time in seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def __call__(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(max(seconds, 0.0))


class VirtualClock:
    """A clock that moves only when someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move on by ``seconds``."""
        self.now += max(seconds, 0.0)


class TokenStream:
    """The tokens that a simulated target says."""

    def __init__(self, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self._seed = mix64(seed + GOLDEN)

    def after(self, token_id: int, position: int) -> int:
        """Return what follows ``token_id`` at index ``position``."""
        return mix64(self._seed + token_id * MIX1 + position * GOLDEN) % self.vocab_size

    def after_all(
        self, token_ids: NDArray[np.uint64], positions: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """Return what follows each token; equal to ``after``."""
        value = np.uint64(self._seed) + token_ids * np.uint64(MIX1) + positions * np.uint64(GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(MIX1)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(MIX2)
        value ^= value >> np.uint64(31)
        return np.asarray(value % np.uint64(self.vocab_size), dtype=np.int64)


class SimulatedTarget:
    """A target whose steps take the time of a known model on a known GPU."""

    def __init__(
        self,
        roofline: Roofline,
        clock: Clock,
        *,
        vocab_size: int = VOCAB_SIZE,
        tokenizer_fingerprint: str = "",
        seed: int = 0,
    ) -> None:
        self.roofline = roofline
        self.clock = clock
        self.stream = TokenStream(vocab_size, seed)
        self._info = TargetInfo(
            name=roofline.model.name,
            engine="simulated",
            vocab_size=vocab_size,
            num_token_ids=vocab_size,
            context_length=roofline.model.context_length,
            eos_token_ids=(),
            tokenizer_fingerprint=tokenizer_fingerprint,
        )

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._info

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Do nothing: nothing is stored."""

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Let the step's time pass; the true token of every wanted row stands out."""
        started = self.clock()
        token_ids, positions = _wanted_rows(batch.spans)
        chosen = torch.from_numpy(self.stream.after_all(token_ids, positions))
        logits = torch.zeros(len(chosen), self._info.vocab_size)
        logits[torch.arange(len(chosen)), chosen] = PEAK_LOGIT
        took = self.clock() - started
        self.clock.sleep(self.roofline.seconds(work_of(batch)) - took)
        return logits

    def move_kv(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Do nothing: moving a few tokens' KV is lost in the step time."""


def work_of(batch: FlatBatch) -> Work:
    """Return what a batch costs; tree rows are counted as if each saw all rows before it."""
    num_rows = num_context = num_pairs = 0
    for span in batch.spans:
        rows, context = span.num_rows, span.context_len
        num_rows += rows
        num_context += context
        num_pairs += rows * context + rows * (rows + 1) // 2
    return Work(num_rows, num_context, num_pairs)


def _wanted_rows(
    spans: Sequence[RowSpan],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    token_ids = [span.token_ids[row] for span in spans for row in span.logit_rows]
    positions = [span.positions[row] for span in spans for row in span.logit_rows]
    return np.array(token_ids, np.uint64), np.array(positions, np.uint64)
