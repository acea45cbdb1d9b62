"""A gateway in this process, on a loopback port, for tests that call it with real stubs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gateway.server import ConfigFile, Gateway, open_gateway
from gateway.settings import GatewaySettings
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub

if TYPE_CHECKING:
    from paceline.v1.generation_service_pb2_grpc import GenerationServiceAsyncStub

CALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway and a stub to call it."""

    gateway: Gateway
    stub: GenerationServiceAsyncStub

    async def generate(self, request: messages.GenerateRequest) -> messages.GenerateResponse:
        """Call ``Generate``."""
        return await self.stub.Generate(request, timeout=CALL_SECONDS)

    async def stream(
        self, request: messages.GenerateRequest
    ) -> list[messages.StreamGenerateResponse]:
        """Call ``StreamGenerate`` and return all events."""
        wrapped = messages.StreamGenerateRequest(request=request)
        return [event async for event in self.stub.StreamGenerate(wrapped, timeout=CALL_SECONDS)]

    async def failure(self, request: messages.GenerateRequest) -> grpc.aio.AioRpcError:
        """Call ``Generate`` and return the error that it must end in."""
        try:
            await self.generate(request)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the call succeeded")


@asynccontextmanager
async def running_gateway(
    folder: Path,
    *verifiers: str,
    wait_until_ready: bool = True,
    config: ConfigFile | None = None,
    **settings: object,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway in front of some verifiers until the block ends."""
    fields: dict[str, object] = {
        "listen": "127.0.0.1:0",
        "verifiers": verifiers,
        "model": folder,
        "verifier_refresh_seconds": 0.05,
    }
    async with (
        open_gateway(GatewaySettings(**(fields | settings)), config) as gateway,  # type: ignore[arg-type]
        grpc.aio.insecure_channel(gateway.address) as channel,
    ):
        if wait_until_ready:
            await until_ready(gateway)
        yield RunningGateway(gateway, GenerationServiceStub(channel))


async def until_ready(gateway: Gateway) -> None:
    """Wait until every verifier can be used."""
    verifiers = gateway.generator.verifiers
    async with asyncio.timeout(CALL_SECONDS):
        while not all(link.is_usable for link in verifiers.links):
            await verifiers.wait_for_change()


def violated_fields(error: grpc.aio.AioRpcError) -> list[str]:
    """Return the request fields that an error blames."""
    return [
        violation.field
        for detail in details(error)
        if isinstance(detail, error_details_pb2.BadRequest)
        for violation in detail.field_violations
    ]


def retry_seconds(error: grpc.aio.AioRpcError) -> float | None:
    """Return when an error says to come back."""
    for detail in details(error):
        if isinstance(detail, error_details_pb2.RetryInfo):
            return float(detail.retry_delay.ToNanoseconds() / 1e9)
    return None


def exceeded_quotas(error: grpc.aio.AioRpcError) -> list[str]:
    """Return the quotas that an error says are used up."""
    return [
        violation.subject
        for detail in details(error)
        if isinstance(detail, error_details_pb2.QuotaFailure)
        for violation in detail.violations
    ]


def reason(error: grpc.aio.AioRpcError) -> str:
    """Return the machine-readable cause of an error."""
    for detail in details(error):
        if isinstance(detail, error_details_pb2.ErrorInfo):
            return str(detail.reason)
    return ""


def details(error: grpc.aio.AioRpcError) -> list[object]:
    """Return the ``google.rpc`` details of an error."""
    kinds = (
        error_details_pb2.BadRequest,
        error_details_pb2.RetryInfo,
        error_details_pb2.ErrorInfo,
        error_details_pb2.QuotaFailure,
    )
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # aio errors have what it reads
    found: list[object] = []
    for packed in status.details if status else ():
        for kind in kinds:
            message = kind()
            if packed.Unpack(message):
                found.append(message)
    return found
