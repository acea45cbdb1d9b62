"""How many outputs may move to other verifiers, over all requests of a gateway."""

from __future__ import annotations

from collections.abc import Callable

from gateway.quotas import Allowance


class FailoverBudget:
    """
    A token bucket, so that verifiers which fall one after another are not buried under retries.

    One lost verifier moves all that ran there at once: a full bucket holds more than that.
    """

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._limits = burst, per_second
        self._allowance = Allowance(per_second, burst, clock())

    def resize(self, burst: int, per_second: float) -> None:
        """Start afresh with other limits; the same ones change nothing."""
        if (burst, per_second) != self._limits:
            self._limits = burst, per_second
            self._allowance = Allowance(per_second, burst, self._clock())

    def spend(self) -> float:
        """Take one failover; return 0, or how many seconds until there will be one."""
        now = self._clock()
        wait = self._allowance.seconds_until(1, now)
        if wait == 0.0:
            self._allowance.spend(1, now)
        return wait
