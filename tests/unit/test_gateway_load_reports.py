"""Load reports of a verifier: each is known at once, few are announced, the last one always."""

from __future__ import annotations

import asyncio

import pytest

from gateway.generation import VerifierLoad
from gateway.load_reports import ANNOUNCE_SECONDS, LoadReports
from paceline.v1.verify_service_pb2 import LoadReport

pytestmark = pytest.mark.asyncio


async def test_many_reports_are_announced_at_once_and_at_the_end() -> None:
    seen: list[int] = []
    reports = LoadReports(lambda: seen.append(reports.current.num_running))

    for number in range(1, 50):
        reports.take(LoadReport(num_running=number))
        assert reports.current.num_running == number
    at_once = list(seen)
    await asyncio.sleep(3 * ANNOUNCE_SECONDS)

    assert at_once == [1]
    assert seen == [1, 49]


async def test_after_a_pause_a_report_is_announced_at_once_again() -> None:
    seen: list[int] = []
    reports = LoadReports(lambda: seen.append(reports.current.num_running))
    reports.take(LoadReport(num_running=1))
    await asyncio.sleep(2 * ANNOUNCE_SECONDS)

    reports.take(LoadReport(num_running=2))

    assert seen == [1, 2]


async def test_a_reset_forgets_the_load_and_what_was_to_be_announced() -> None:
    seen: list[int] = []
    reports = LoadReports(lambda: seen.append(reports.current.num_running))
    reports.take(LoadReport(num_running=1))
    reports.take(LoadReport(num_running=2))

    reports.reset()
    await asyncio.sleep(2 * ANNOUNCE_SECONDS)

    assert reports.current == VerifierLoad()
    assert seen == [1]
