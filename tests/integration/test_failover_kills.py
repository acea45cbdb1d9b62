"""The failover bench in small: real processes on the tiny model, killed at random moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.failover import kill_draft_service, kill_verifiers
from bench.kill_line import started
from paceline.errors import EngineFailed

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]


async def test_a_process_that_does_not_come_back_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"^draft ended with code 2: .*nonsense") as failed:
        await started("draft", "draft_service", tmp_path, "--drafter", "nonsense")

    assert str(tmp_path / "draft.log") in failed.value.message


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
