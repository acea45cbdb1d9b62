"""What a caller may still do, at times that a test sets."""

from __future__ import annotations

import pytest

from gateway import quotas
from gateway.caller import ANYBODY, Caller, Grant
from gateway.quotas import Quotas
from paceline.errors import Overloaded


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _caller(name: str = "a", **limits: object) -> Caller:
    return Caller(name, Grant.model_validate({"tenant": "t", **limits}))


def _refusal(book: Quotas, caller: Caller, *, generates: bool = True) -> Overloaded:
    with pytest.raises(Overloaded) as refused:
        book.enter(caller, generates=generates)
    assert refused.value.reason == "QUOTA_EXCEEDED"
    return refused.value


def test_requests_beyond_the_rate_are_told_when_to_come_back() -> None:
    clock, caller = Clock(), _caller(requests_per_second=2)
    book = Quotas(clock)
    for _ in range(2):
        book.enter(caller, generates=False)

    refused = _refusal(book, caller, generates=False)
    clock.now += refused.retry_after_seconds or 0
    book.enter(caller, generates=False)

    assert refused.quota == "requests_per_second"
    assert refused.retry_after_seconds == pytest.approx(0.5)


def test_a_rate_below_one_per_second_allows_the_first_request() -> None:
    clock, caller = Clock(), _caller(requests_per_second=0.1)
    book = Quotas(clock)
    book.enter(caller, generates=False)

    assert _refusal(book, caller).retry_after_seconds == pytest.approx(10)


def test_tokens_are_overdrawn_once_and_then_grow_back() -> None:
    clock, caller = Clock(), _caller(tokens_per_minute=60)
    book = Quotas(clock)
    lease = book.enter(caller, generates=True)
    lease.charge(90)
    lease.close()

    refused = _refusal(book, caller)
    book.enter(caller, generates=False)
    clock.now += 31
    book.enter(caller, generates=True)

    assert refused.quota == "tokens_per_minute"
    assert refused.retry_after_seconds == pytest.approx(31)


def test_streams_are_counted_while_they_run_and_given_back_once() -> None:
    book, caller = Quotas(Clock()), _caller(concurrent_streams=2)
    first, second = (book.enter(caller, generates=True) for _ in range(2))

    refused = _refusal(book, caller)
    book.enter(caller, generates=False)
    first.close()
    first.close()
    third = book.enter(caller, generates=True)
    _refusal(book, caller)
    for lease in (second, third):
        lease.close()

    assert refused.quota == "concurrent_streams"
    assert refused.retry_after_seconds is not None


def test_a_refused_call_costs_nothing() -> None:
    clock, caller = Clock(), _caller(requests_per_second=1, concurrent_streams=1)
    book = Quotas(clock)
    lease = book.enter(caller, generates=True)
    clock.now += 1
    for _ in range(5):
        _refusal(book, caller)
    lease.close()

    book.enter(caller, generates=True)


def test_callers_do_not_use_up_each_others_quotas() -> None:
    book = Quotas(Clock())
    book.enter(_caller("a", concurrent_streams=1), generates=True)

    book.enter(_caller("b", concurrent_streams=1), generates=True)


def test_a_changed_grant_holds_at_once_and_running_streams_stay_counted() -> None:
    book = Quotas(Clock())
    lease = book.enter(_caller(concurrent_streams=2), generates=True)

    _refusal(book, _caller(concurrent_streams=1))
    lease.close()
    book.enter(_caller(concurrent_streams=1), generates=True)


def test_anybody_is_not_counted() -> None:
    book = Quotas(Clock())
    for _ in range(1000):
        book.enter(ANYBODY, generates=True).charge(10**9)


def test_the_number_of_accounts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_ACCOUNTS", 3)
    book = Quotas(Clock())
    for number in range(10):
        book.enter(_caller(str(number), requests_per_second=1), generates=False)

    _refusal(book, _caller("9", requests_per_second=1))
    book.enter(_caller("0", requests_per_second=1), generates=False)
