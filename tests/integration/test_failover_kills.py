"""The failover bench in small: real processes on the tiny model, killed at random moments."""

from __future__ import annotations

import pytest

from bench.failover import kill_draft_service, kill_verifiers

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]


async def test_two_kills_of_a_verifier_fail_no_request_and_change_no_id() -> None:
    """B073."""
    damage = await kill_verifiers(2, num_streams=8, watched_seconds=1.0)

    assert damage.num_requests >= 16
    assert damage.failures == []
    assert damage.num_changed == 0
    assert len(damage.added_seconds) == 16


async def test_two_kills_of_the_draft_service_fail_no_request_and_change_no_id() -> None:
    """B062: and drafts come back each time."""
    damage = await kill_draft_service(2, num_streams=8, watched_seconds=1.0)

    assert damage.num_requests >= 16
    assert damage.failures == []
    assert damage.num_changed == 0
    assert len(damage.lost_steps) == 2
