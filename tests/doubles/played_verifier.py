"""A verifier's end of the draft link, for tests: sends what it is told, waits with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import grpc.aio

from paceline.channels import open_link
from paceline.codec import tree_from_proto
from paceline.tree import TokenTree
from paceline.v1.draft_service_pb2 import (
    DraftRequest,
    DraftResponse,
    GetCapabilitiesRequest,
    GetCapabilitiesResponse,
    Proposal,
    SessionClose,
    SessionCommit,
    SessionOpen,
)
from paceline.v1.draft_service_pb2_grpc import DraftServiceStub

ANSWER_SECONDS = 10.0


class PlayedVerifier:
    """One stream to a draft service."""

    def __init__(self, call: grpc.aio.StreamStreamCall[DraftRequest, DraftResponse]) -> None:
        self._call = call

    async def send(
        self,
        *,
        opens: Sequence[SessionOpen] = (),
        commits: Sequence[SessionCommit] = (),
        closes: Sequence[int] = (),
    ) -> None:
        """Send one message."""
        closing = [SessionClose(session_id=session_id) for session_id in closes]
        await self._call.write(DraftRequest(opens=opens, commits=commits, closes=closing))

    async def receive(self) -> DraftResponse:
        """Return the next message; fails when none comes in time or the stream ends."""
        response = await asyncio.wait_for(self._call.read(), ANSWER_SECONDS)
        if not isinstance(response, DraftResponse):
            raise ConnectionError("the draft service has ended the stream")
        return response

    async def receive_for(self, base_len: int) -> DraftResponse:
        """Return the next message with trees for a committed length, skipping older trees."""
        while True:
            response = await self.receive()
            if any(proposal.base_len == base_len for proposal in response.proposals):
                return response

    async def receive_of(self, session_ids: Iterable[int]) -> DraftResponse:
        """Return as one the messages that answer these sessions: opening them may take several."""
        left, whole = set(session_ids), DraftResponse()
        while left:
            response = await self.receive()
            whole.MergeFrom(response)
            left -= {proposal.session_id for proposal in response.proposals}
            left -= {refusal.session_id for refusal in response.refusals}
        return whole

    async def receive_unknown(self) -> DraftResponse:
        """Return the next message that reports unknown sessions, skipping trees before it."""
        while True:
            response = await self.receive()
            if response.unknown_session_ids:
                return response

    async def is_silent(self, seconds: float) -> bool:
        """Return whether no message comes for a while; the stream cannot be used afterwards."""
        try:
            await asyncio.wait_for(self._call.read(), seconds)
        except TimeoutError:
            return True
        return False

    async def proposal(self, session_id: int, base_len: int) -> TokenTree:
        """Return the tree that a session gets for a committed length, skipping older ones."""
        while True:
            found = proposal_in(await self.receive(), session_id)
            if found is not None and found.base_len == base_len:
                return tree_from_proto(found.tree)

    async def end(self) -> None:
        """Send nothing more and wait until the service has ended the stream, too."""
        await self._call.done_writing()
        while await asyncio.wait_for(self._call.read(), ANSWER_SECONDS) is not grpc.aio.EOF:
            pass


def proposal_in(response: DraftResponse, session_id: int) -> Proposal | None:
    """Return a session's proposal in a message, if it holds one."""
    for proposal in response.proposals:
        if proposal.session_id == session_id:
            return proposal
    return None


@asynccontextmanager
async def played_verifier(address: str) -> AsyncIterator[PlayedVerifier]:
    """Yield a stream to the draft service at an address."""
    async with open_link(address) as channel:
        call = DraftServiceStub(channel).Draft()
        try:
            yield PlayedVerifier(call)
        finally:
            call.cancel()


async def capabilities_of(address: str) -> GetCapabilitiesResponse:
    """Return what a draft service says about itself."""
    async with open_link(address) as channel:
        return await DraftServiceStub(channel).GetCapabilities(
            GetCapabilitiesRequest(), timeout=ANSWER_SECONDS
        )
