"""A draft service whose drafter is not ready yet: it says so, and drafts as soon as it is."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from draft_service.server import running_server
from draft_service.settings import DraftSettings
from paceline.cli.address import bindable_address
from paceline.v1.draft_service_pb2 import SessionOpen
from tests.doubles.played_verifier import capabilities_of, played_verifier
from tests.doubles.recording_drafter import RecordingDrafter

pytestmark = pytest.mark.asyncio


class SlowStarter(RecordingDrafter):
    """Warms up until told to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def warm_up(self) -> None:
        """Wait."""
        self.may_end.wait(30)


async def test_verifiers_are_told_to_come_back_until_the_drafter_is_warm() -> None:
    drafter = SlowStarter()
    settings = DraftSettings(listen=bindable_address("127.0.0.1:0", "listen"))
    ready = asyncio.Event()
    done = asyncio.Event()

    async def serve() -> None:
        async with running_server(settings, drafter):
            ready.set()
            await done.wait()

    serving = asyncio.create_task(serve())
    try:
        await _refused(settings.listen)
        async with played_verifier(settings.listen) as verifier:
            with pytest.raises(grpc.RpcError, match="warming up"):
                await verifier.receive()
        drafter.may_end.set()
        await asyncio.wait_for(ready.wait(), 10)

        assert (await capabilities_of(settings.listen)).drafter == "recording"
        async with played_verifier(settings.listen) as verifier:
            await verifier.send(opens=[SessionOpen(session_id=1, committed_token_ids=[1, 2, 3])])
            assert (await verifier.proposal(1, 3)).num_nodes == 1
    finally:
        drafter.may_end.set()
        done.set()
        await serving


async def _refused(address: str) -> None:
    for _ in range(100):
        with pytest.raises(grpc.RpcError) as refused:
            await capabilities_of(address)
        if "warming up" in str(refused.value):
            return
        await asyncio.sleep(0.05)
    pytest.fail("the service never said that it is warming up")
