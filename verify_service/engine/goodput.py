"""What drafting earns: measured tokens per second against what plain steps would have given."""

from __future__ import annotations

EMA_WEIGHT = 0.05
MIN_WAIT_SECONDS = 0.0001
"""Nothing comes in less; waking up for it would take longer."""


class GainMeter:
    """The ratio of goodput with drafts to the estimate without."""

    def __init__(self) -> None:
        self.gain = 1.0

    def record(
        self, num_sequences: int, num_tokens: int, seconds: float, plain_seconds: float
    ) -> None:
        """Learn from one decode step that verified drafts."""
        if num_sequences == 0 or seconds <= 0:
            return
        ratio = (num_tokens / seconds) / (num_sequences / plain_seconds)
        self.gain += EMA_WEIGHT * (ratio - self.gain)


def worthwhile_wait(
    *, expected_tokens: float, num_sequences: int, step_seconds: float, max_seconds: float
) -> float:
    """
    Return how long a step may wait for trees in flight.

    Waiting pays while ``(N + expected) / (step + wait) > N / step``, that is while
    ``wait < step * expected / N``; half of that is used, since the estimate is one.
    """
    if num_sequences == 0:
        return 0.0
    seconds = min(max_seconds, 0.5 * step_seconds * expected_tokens / num_sequences)
    return seconds if seconds >= MIN_WAIT_SECONDS else 0.0
