"""Sessions that arrive together, as they do at a drafter that is back."""

from __future__ import annotations

import time

import pytest

from draft_service.drafter import DraftSession, SessionSpec
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from paceline.v1.draft_service_pb2 import SessionOpen
from tests.doubles.played_verifier import played_verifier
from tests.doubles.recording_drafter import RecordingDrafter

pytestmark = pytest.mark.asyncio

NUM_SESSIONS = 30
OPENING_SECONDS = 0.001


class SlowReader(RecordingDrafter):
    """Takes a while to open a session, as an index of a long text does."""

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session, after a while."""
        time.sleep(OPENING_SECONDS)
        return super().open(spec)


async def test_the_first_of_many_sessions_is_answered_before_the_last_is_opened() -> None:
    drafter = SlowReader()
    opens = [SessionOpen(session_id=i, committed_token_ids=[i]) for i in range(1, NUM_SESSIONS + 1)]
    async with (
        running_server(DraftSettings(listen="127.0.0.1:0"), drafter) as server,
        played_verifier(server.address) as verifier,
    ):
        await verifier.send(opens=opens)
        response = await verifier.receive_of(range(1, NUM_SESSIONS + 1))

    assert len(response.proposals) == NUM_SESSIONS
    assert drafter.batch_sizes[0] < NUM_SESSIONS
