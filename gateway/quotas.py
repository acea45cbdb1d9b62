"""What callers have used of what they may use. Who they are is decided at the door."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.caller import Caller, Grant
from paceline.errors import Overloaded

MAX_ACCOUNTS: Final = 65_536
"""Accounts of callers that have been away longest go first; theirs are full again anyway."""

STREAM_RETRY_SECONDS: Final = 1.0


class Allowance:
    """A number that grows at a constant rate up to a limit, and may be overdrawn."""

    def __init__(self, rate: float, limit: float, now: float) -> None:
        self._rate, self._limit = rate, limit
        self._left, self._as_of = limit, now

    def seconds_until(self, amount: float, now: float) -> float:
        """Return how long until that much is there; 0: it is."""
        self._refill(now)
        return max(0.0, (amount - self._left) / self._rate)

    def spend(self, amount: float, now: float) -> None:
        """Take an amount away, whether or not it is there."""
        self._refill(now)
        self._left -= amount

    def _refill(self, now: float) -> None:
        self._left = min(self._limit, self._left + self._rate * (now - self._as_of))
        self._as_of = now


class _Account:
    def __init__(self, now: float, grant: Grant) -> None:
        self.num_streams = 0
        self.renew(now, grant)

    def renew(self, now: float, grant: Grant) -> None:
        rate, tokens = grant.requests_per_second, grant.tokens_per_minute
        self.grant = grant
        self.requests = None if rate is None else Allowance(rate, max(1.0, rate), now)
        self.tokens = None if tokens is None else Allowance(tokens / 60, tokens, now)


class Quotas:
    """One account per caller, opened at its first call and renewed when its grant changes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def enter(self, caller: Caller, *, generates: bool) -> Lease:
        """Count a call; raises ``Overloaded`` naming the quota that is used up."""
        if caller.grant is None:
            return Lease(None, self._clock, generates=generates)
        account, now = self._account(caller.name, caller.grant), self._clock()
        self._check(account, now, generates=generates)
        if account.requests is not None:
            account.requests.spend(1, now)
        return Lease(account, self._clock, generates=generates)

    def _check(self, account: _Account, now: float, *, generates: bool) -> None:
        grant, wait = account.grant, 0.0
        if account.requests is not None and (wait := account.requests.seconds_until(1, now)) > 0:
            raise _used_up("requests_per_second", f"{grant.requests_per_second:g}", wait)
        if not generates:
            return
        if account.tokens is not None and (wait := account.tokens.seconds_until(1, now)) > 0:
            raise _used_up("tokens_per_minute", str(grant.tokens_per_minute), wait)
        limit = grant.concurrent_streams
        if limit is not None and account.num_streams >= limit:
            raise _used_up("concurrent_streams", str(limit), STREAM_RETRY_SECONDS)

    def _account(self, name: str, grant: Grant) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(self._clock(), grant)
        elif account.grant != grant:
            account.renew(self._clock(), grant)
        self._accounts.move_to_end(name)
        if len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return account


class Lease:
    """One running call's place in its caller's account; ``close`` gives it back, once."""

    def __init__(
        self, account: _Account | None, clock: Callable[[], float], *, generates: bool
    ) -> None:
        self._account = account
        self._clock = clock
        self._holds_stream = generates and account is not None
        if account is not None and generates:
            account.num_streams += 1

    def charge(self, num_tokens: int) -> None:
        """Count tokens; more than is left delays the caller's next request."""
        if self._account is not None and self._account.tokens is not None:
            self._account.tokens.spend(num_tokens, self._clock())

    def close(self) -> None:
        """End the call."""
        if self._holds_stream and self._account is not None:
            self._holds_stream = False
            self._account.num_streams -= 1


def _used_up(quota: str, limit: str, wait_seconds: float) -> Overloaded:
    return Overloaded(
        f"the quota {quota} of this credential is {limit}; retry in {wait_seconds:.1f} s",
        reason="QUOTA_EXCEEDED",
        retry_after_seconds=wait_seconds,
        quota=quota,
    )
