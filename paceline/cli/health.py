"""Asks servers for their health (``grpc.health.v1``)."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.channels import LINK_OPTIONS
from paceline.serving import READINESS

SERVING: Final = health_pb2.HealthCheckResponse.SERVING

_IMPATIENT: Final = tuple(
    (name, min(int(value), 200) if name.endswith("_backoff_ms") else value)
    for name, value in LINK_OPTIONS
)
"""A process that is starting is tried often: it is on this machine and somebody waits."""


async def wait_until_serving(address: str) -> None:
    """Return once the server at an address says that it can serve; waits as long as it takes."""
    request = health_pb2.HealthCheckRequest(service=READINESS)
    async with grpc.aio.insecure_channel(address, options=_IMPATIENT) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for answer in stub.Watch(request, wait_for_ready=True):
                    if answer.status == SERVING:
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)


async def is_serving(channel: grpc.aio.Channel, timeout_seconds: float) -> bool:
    """Return whether the server says that it can serve; raises ``AioRpcError`` if none answers."""
    request = health_pb2.HealthCheckRequest(service=READINESS)
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(request, timeout=timeout_seconds)
    return bool(answer.status == SERVING)


async def knows_service(channel: grpc.aio.Channel, name: str, timeout_seconds: float) -> bool:
    """Return whether the server names a service by its full name, ready or not."""
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_seconds)
    except grpc.aio.AioRpcError as error:
        if error.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}:
            return False
        raise
    return True
