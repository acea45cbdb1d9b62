"""A client of ``VerifyService.Verify`` that brings its own drafts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from paceline.channels import open_link
from paceline.v1 import types_pb2, verify_service_pb2, verify_service_pb2_grpc

TIMEOUT_SECONDS = 20.0


class VerifyClient:
    """One session: send a proposal, receive its verdict."""

    def __init__(self, stub: verify_service_pb2_grpc.VerifyServiceAsyncStub) -> None:
        self.call = stub.Verify()
        self.token_ids: list[int] = []
        """Everything that verdicts brought."""
        self.committed_len = 0

    async def open(self, start: verify_service_pb2.Start) -> int:
        """Open the session and return the committed length."""
        await self.call.write(verify_service_pb2.VerifyRequest(open=start))
        self.committed_len = (await self._read()).opened_len
        return self.committed_len

    async def propose(
        self,
        token_ids: Sequence[int] = (),
        parents: Sequence[int] | None = None,
        *,
        base_len: int | None = None,
    ) -> verify_service_pb2.StepResult:
        """Send a tree, a chain unless ``parents`` say otherwise, and return its verdict."""
        tree = types_pb2.TokenTree(
            token_ids=token_ids, parents=range(len(token_ids)) if parents is None else parents
        )
        proposal = verify_service_pb2.VerifyProposal(
            base_len=self.committed_len if base_len is None else base_len, tree=tree
        )
        await self.call.write(verify_service_pb2.VerifyRequest(proposal=proposal))
        verdict = (await self._read()).verdict
        self.token_ids.extend(verdict.token_ids)
        self.committed_len += len(verdict.token_ids)
        return verdict

    async def _read(self) -> verify_service_pb2.VerifyResponse:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            response = await self.call.read()
        if not isinstance(response, verify_service_pb2.VerifyResponse):
            raise ConnectionError("the verifier ended the session")
        return response


@asynccontextmanager
async def verify_client(address: str) -> AsyncIterator[VerifyClient]:
    """Connect to a verifier; hang up at the end."""
    async with open_link(address) as channel:
        client = VerifyClient(verify_service_pb2_grpc.VerifyServiceStub(channel))
        try:
            yield client
        finally:
            client.call.cancel()


async def model_info(address: str) -> verify_service_pb2.GetModelInfoResponse:
    """Ask a verifier what it serves."""
    async with open_link(address) as channel:
        stub = verify_service_pb2_grpc.VerifyServiceStub(channel)
        return await stub.GetModelInfo(
            verify_service_pb2.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS
        )
