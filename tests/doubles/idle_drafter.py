"""A draft service that only says who it is, over real gRPC on the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from paceline.serving import Server
from paceline.v1 import draft_service_pb2
from paceline.v1.draft_service_pb2_grpc import (
    DraftServiceServicer,
    add_DraftServiceServicer_to_server,
)

Capabilities = draft_service_pb2.GetCapabilitiesResponse


class IdleDrafter(DraftServiceServicer):
    """Answers with the given capabilities and never drafts."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    async def GetCapabilities(
        self,
        request: draft_service_pb2.GetCapabilitiesRequest,
        context: grpc.aio.ServicerContext[draft_service_pb2.GetCapabilitiesRequest, Capabilities],
    ) -> Capabilities:
        """Return the scripted capabilities."""
        return self._capabilities

    async def Draft(
        self,
        request_iterator: AsyncIterator[draft_service_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[
            draft_service_pb2.DraftRequest, draft_service_pb2.DraftResponse
        ],
    ) -> AsyncIterator[draft_service_pb2.DraftResponse]:
        """Take everything in and answer nothing."""
        async for _ in request_iterator:
            yield draft_service_pb2.DraftResponse()


@asynccontextmanager
async def drafter(capabilities: Capabilities) -> AsyncIterator[str]:
    """Serve such a drafter and yield its address."""
    server = Server(["paceline.v1.DraftService"])
    add_DraftServiceServicer_to_server(IdleDrafter(capabilities), server.grpc)
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"
    await server.start()
    await server.set_ready(True)
    try:
        yield address
    finally:
        await server.stop(0)
