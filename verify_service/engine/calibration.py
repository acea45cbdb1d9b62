"""
How far drafters' estimates can be trusted: raw log-probability in, observed hit rate out.

Estimates are binned; each bin holds decayed counts of trials and hits. A sequence's own counts are
blended with its pool's, and the pool's with the raw estimate, so that each level speaks up as it
gathers evidence (a hierarchical Beta model).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from verify_service.engine.draft_trie import Observation

_EDGES = (0.03, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.985)
NUM_BINS = len(_EDGES) + 1
_LOG_EDGES = tuple(math.log(edge) for edge in _EDGES)

POOL_DECAY = 0.998
SEQUENCE_DECAY = 0.97
POOL_PRIOR_TRIALS = 8.0
SEQUENCE_PRIOR_TRIALS = 6.0


def bin_of(log_prob: float) -> int:
    """Return the index of the bin that a log-probability falls into."""
    return bisect_right(_LOG_EDGES, log_prob)


class HitCounts:
    """Decayed trials and hits per bin."""

    __slots__ = ("_decay", "hits", "trials")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.trials = [0.0] * NUM_BINS
        self.hits = [0.0] * NUM_BINS

    def record(self, observation: Observation) -> None:
        """Count one observation."""
        index = bin_of(observation.log_prob)
        self.trials[index] = self.trials[index] * self._decay + 1.0
        self.hits[index] = self.hits[index] * self._decay + float(observation.hit)

    def rate(self, index: int, prior: float, prior_trials: float) -> float:
        """Return the hit rate of a bin, ``prior`` counting as ``prior_trials`` trials."""
        return (self.hits[index] + prior * prior_trials) / (self.trials[index] + prior_trials)


class PoolCalibration:
    """The hit rates of one draft pool, shared by its sequences."""

    def __init__(self) -> None:
        self.counts = HitCounts(POOL_DECAY)
        self.squared_error = 0.0
        """Decayed mean squared error of the calibrated estimates (Brier score)."""
        self._told = HitCounts(POOL_DECAY)
        """What came of the calibrated estimates, by their own bins."""
        self._promised = [0.0] * NUM_BINS
        """Decayed sums of those estimates, as ``_told.trials``."""

    def rate(self, log_prob: float) -> float:
        """Return the probability that a node with this raw estimate hits."""
        return self.counts.rate(bin_of(log_prob), math.exp(log_prob), POOL_PRIOR_TRIALS)

    @property
    def calibration_error(self) -> float:
        """
        The expected calibration error: how far promised and seen hit rates are apart, averaged
        over the bins by their share of trials; 0 is honest (Guo et al. 2017).
        """
        trials = sum(self._told.trials)
        if trials == 0:
            return 0.0
        pairs = zip(self._promised, self._told.hits, strict=True)
        return sum(abs(promised - hits) for promised, hits in pairs) / trials

    def note(self, estimate: float, *, hit: bool) -> None:
        """Take note of what came of one calibrated estimate."""
        error = estimate - float(hit)
        self.squared_error += 0.01 * (error * error - self.squared_error)
        log_prob = math.log(max(estimate, 1e-9))
        index = bin_of(log_prob)
        self._promised[index] = self._promised[index] * POOL_DECAY + estimate
        self._told.record(Observation(log_prob, hit))


class SequenceCalibration:
    """The hit rates of one sequence, seeded by its pool's."""

    def __init__(self, pool: PoolCalibration) -> None:
        self._pool = pool
        self._counts = HitCounts(SEQUENCE_DECAY)

    def rate(self, log_prob: float) -> float:
        """Return the probability that a node with this raw estimate hits, given its parent did."""
        # Asked for every node of every tree: HitCounts.rate twice, without its calls.
        index, own, pool = bisect_right(_LOG_EDGES, log_prob), self._counts, self._pool.counts
        hits = pool.hits[index] + math.exp(log_prob) * POOL_PRIOR_TRIALS
        prior = hits / (pool.trials[index] + POOL_PRIOR_TRIALS)
        prior_hits = prior * SEQUENCE_PRIOR_TRIALS
        return (own.hits[index] + prior_hits) / (own.trials[index] + SEQUENCE_PRIOR_TRIALS)

    def record(self, observations: Iterable[Observation]) -> None:
        """Learn from committed tokens."""
        for observation in observations:
            self._pool.note(self.rate(observation.log_prob), hit=observation.hit)
            self._counts.record(observation)
            self._pool.counts.record(observation)
