"""
A gateway without any gateway in it: gRPC in, gRPC out, nothing between. What is left is the price
of the transport, beside which the real gateway's cost is read.

    python -m bench.bare_relay --listen HOST:PORT UPSTREAM
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

import grpc
import grpc.aio

from paceline.channels import open_link
from paceline.serving import Server
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import verify_service_pb2 as verify
from paceline.v1.verify_service_pb2_grpc import VerifyServiceStub

SERVICE: Final = "paceline.v1.GenerationService"

StreamContext: TypeAlias = grpc.aio.ServicerContext[
    messages.StreamGenerateRequest, messages.StreamGenerateResponse
]


class BareRelay:
    """Passes each step's ids on; bounded by what its one caller, the bench, asks for."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._sinks: dict[int, asyncio.Queue[verify.StepResult]] = {}
        self._outgoing: asyncio.Queue[verify.AttachRequest] = asyncio.Queue()

    async def run(self, upstream: str) -> None:
        """Read steps until the verifier goes."""
        async with open_link(upstream) as channel:
            async for response in VerifyServiceStub(channel).Attach(self._requests()):
                for result in response.results:
                    sink = self._sinks.get(result.request_id)
                    if sink is not None:
                        sink.put_nowait(result)

    async def stream(
        self, request: messages.StreamGenerateRequest, context: StreamContext
    ) -> AsyncIterator[messages.StreamGenerateResponse]:
        """Pass on whatever the verifier says."""
        number = next(self._numbers)
        sink = self._sinks[number] = asyncio.Queue()
        start = verify.Start(request_id=number)
        start.limits.max_tokens = request.request.stopping.max_tokens
        self._outgoing.put_nowait(verify.AttachRequest(starts=[start]))
        try:
            while True:
                result = await sink.get()
                response = messages.StreamGenerateResponse()
                response.delta.text = "a"
                response.delta.token_ids.extend(result.token_ids)
                yield response
        finally:
            del self._sinks[number]
            cancel = verify.Cancel(request_id=number)
            self._outgoing.put_nowait(verify.AttachRequest(cancels=[cancel]))

    async def _requests(self) -> AsyncIterator[verify.AttachRequest]:
        while True:
            yield await self._outgoing.get()


async def serve(listen: str, upstream: str) -> None:
    """Serve until the verifier goes."""
    relay, server = BareRelay(), Server((SERVICE,))
    handler = grpc.unary_stream_rpc_method_handler(
        relay.stream,
        request_deserializer=messages.StreamGenerateRequest.FromString,
        response_serializer=messages.StreamGenerateResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"StreamGenerate": handler})
    server.grpc.add_generic_rpc_handlers((handlers,))
    server.listen(listen)
    await server.start()
    await server.set_ready(True)
    await relay.run(upstream)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--log-format")
    parser.add_argument("upstream")
    options = parser.parse_args()
    asyncio.run(serve(options.listen, options.upstream))


if __name__ == "__main__":
    main()
