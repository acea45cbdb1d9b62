"""What steps have shown about draft pools, per kind of request. It decides nothing."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from gateway.generation import Step

MAX_ENTRIES: Final = 1024
"""Most pairs of workload and pool, and most pairs of verifier and load; the idlest make room."""

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")

PLAIN: Final = ""
"""Stands for no pool: its acceptance length is 1 and needs no measuring."""


class RunningMean:
    """Moving average of one figure per step; the first steps weigh equally."""

    __slots__ = ("_value", "num_steps")

    WEIGHT: Final = 0.03
    MIN_STEPS: Final = 32

    def __init__(self) -> None:
        self._value = 0.0
        self.num_steps = 0

    def add(self, figure: float) -> None:
        """Take in one more step."""
        self.num_steps += 1
        weight = 1 / self.num_steps
        if weight < self.WEIGHT:
            weight = self.WEIGHT
        self._value += weight * (figure - self._value)

    @property
    def value(self) -> float | None:
        """The average; None while there are too few steps."""
        return self._value if self.num_steps >= self.MIN_STEPS else None


class _Lengths:
    """Tokens per step of one pool on one workload."""

    __slots__ = ("drafted", "overall")

    def __init__(self) -> None:
        self.drafted = RunningMean()
        """Over the steps that verified drafts: what a draft is worth."""
        self.overall = RunningMean()
        """Over all steps, those whose drafts came too late included: what the pool is worth."""


Cell = tuple[str, int]
"""A verifier and how many sequences ran there, as a power of two: steps there are alike."""


class PoolEvidence:
    """
    Tokens per step by workload and pool, and seconds per step by pool at like load.

    Together they give goodput, without mixing up a pool's cost with the load it happened to meet.
    What a pool would have said is known only where it drafted; that no drafts give one token a
    step is known everywhere.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._lengths: OrderedDict[tuple[str, str], _Lengths] = OrderedDict()
        self._seconds: OrderedDict[Cell, dict[str, RunningMean]] = OrderedDict()

    def add_step(self, workload: str, pool: str, step: Step) -> None:
        """Take in one decoding step of a sequence that drafted from a pool."""
        lengths = self._lengths.get((workload, pool))
        if lengths is None:
            lengths = self._lengths[workload, pool] = _Lengths()
            self._make_room(self._lengths)
        else:
            self._lengths.move_to_end((workload, pool))
        lengths.overall.add(len(step.token_ids))
        if step.num_drafted:
            lengths.drafted.add(1 + step.num_accepted)

    def add_seconds(self, cell: Cell, pool: str, seconds: float) -> None:
        """Take in the time between two steps of a sequence under a pool, or under none."""
        pools = self._seconds.get(cell)
        if pools is None:
            pools = self._seconds[cell] = {}
            self._make_room(self._seconds)
        else:
            self._seconds.move_to_end(cell)
        mean = pools.get(pool)
        if mean is None:
            mean = pools[pool] = RunningMean()
        mean.add(seconds)

    def forget(self, workload: str, pool: str) -> None:
        """Measure anew."""
        self._lengths.pop((workload, pool), None)

    def forget_verifier(self, address: str) -> None:
        """Leave out the step times of a verifier that has gone."""
        for cell in [cell for cell in self._seconds if cell[0] == address]:
            del self._seconds[cell]

    def acceptance_length(self, workload: str, pool: str) -> float | None:
        """Return tokens per step that verified drafts; None until there are enough."""
        lengths = self._lengths.get((workload, pool))
        return None if lengths is None else lengths.drafted.value

    def tokens_per_step(self, workload: str, pool: str) -> float | None:
        """Return tokens per step; None until there are enough."""
        lengths = self._lengths.get((workload, pool))
        return None if lengths is None else lengths.overall.value

    def gain(self, workload: str, pool: str) -> float | None:
        """Return tokens per second under a pool divided by those without; None when unknown."""
        length = self.tokens_per_step(workload, pool)
        cost = self._relative_seconds(pool, PLAIN)
        return None if length is None or cost is None else length / cost

    def speeds(self, workload: str, pools: Iterable[str]) -> Mapping[str, float]:
        """Return the goodput of each measured pool, in units that only serve to compare them."""
        lengths = {
            pool: length
            for pool in pools
            if (length := self.tokens_per_step(workload, pool)) is not None
        }
        if not lengths:
            return {}
        first = next(iter(lengths))
        return {
            pool: length / (self._relative_seconds(pool, first) or 1.0)
            for pool, length in lengths.items()
        }

    def _relative_seconds(self, pool: str, other: str) -> float | None:
        """Return the mean ratio of step times over the loads at which both have been seen."""
        ratios: list[float] = []
        for pools in self._seconds.values():
            own = pools[pool].value if pool in pools else None
            theirs = pools[other].value if other in pools else None
            if own and theirs:
                ratios.append(math.log(own / theirs))
        return math.exp(math.fsum(ratios) / len(ratios)) if ratios else None

    def _make_room(self, entries: OrderedDict[_Key, _Entry]) -> None:
        while len(entries) > self._max_entries:
            entries.popitem(last=False)
