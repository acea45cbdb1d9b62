"""An in-process verify service on a table target, and a client that plays the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio

from paceline.channels import open_link
from paceline.v1 import (
    draft_service_pb2_grpc,
    types_pb2,
    verify_service_pb2,
    verify_service_pb2_grpc,
)
from tests.doubles.scripted_drafter import ScriptedDrafter
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.engine_thread import EngineThread
from verify_service.engine.sampling import SamplingParams
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.server import Loaded, VerifyServer
from verify_service.settings import VerifySettings
from verify_service.targets.table import LogitsFunction, TableTarget, markov_logits

VOCAB = 32
POOL = "scripted"
EOS = 31


def make_engine(
    logits_of: LogitsFunction | None = None,
    *,
    context_length: int = 512,
    pace_seconds: float = 0.0,
    **config: object,
) -> StepEngine:
    """
    Return an engine on a table target that verifies whatever it is offered.

    ``pace_seconds`` per row make it as slow as a model, so that drafts have time to arrive.
    """
    target = TableTarget(
        _paced(logits_of or markov_logits(VOCAB, seed=1, order=3), pace_seconds),
        vocab_size=VOCAB,
        context_length=context_length,
        eos_token_ids=(EOS,),
    )
    base = EngineConfig(
        num_blocks=256,
        block_size=8,
        budget=BudgetMode.FIXED,
        draft_pools=(POOL,),
        max_draft_wait_seconds=0.05,
    )
    return StepEngine(target, replace(base, **config))  # type: ignore[arg-type]  # field names


def _paced(logits_of: LogitsFunction, seconds: float) -> LogitsFunction:
    def slow(tokens: tuple[int, ...]) -> Sequence[float]:
        time.sleep(seconds)
        return logits_of(tokens)

    return slow if seconds else logits_of


@asynccontextmanager
async def running_verifier(
    engine: StepEngine, pools: dict[str, str] | None = None, **fields: object
) -> AsyncIterator[tuple[VerifyServer, str]]:
    """Serve an engine on a free port and yield the server and its address."""
    given: dict[str, object] = {"target": "table", "pools": pools or {}, "drain_seconds": 5}
    settings = VerifySettings(**(given | fields))  # type: ignore[arg-type]  # field names
    server = VerifyServer(Loaded(EngineThread(engine), SamplingParams()), settings)
    port = await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.aclose()


@asynccontextmanager
async def running_drafter(drafter: ScriptedDrafter, port: int = 0) -> AsyncIterator[str]:
    """Serve a scripted drafter and yield its address."""
    server = grpc.aio.server()
    draft_service_pb2_grpc.add_DraftServiceServicer_to_server(drafter, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)


@dataclass
class Received:
    """What came back for one request."""

    token_ids: list[int] = field(default_factory=list)
    results: list[verify_service_pb2.StepResult] = field(default_factory=list)
    finish_reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_UNSPECIFIED
    failure: verify_service_pb2.Failure | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    num_drafted: int = 0
    num_accepted: int = 0


class AttachedGateway:
    """One ``Attach`` stream and the results that it brought, by request id."""

    def __init__(self, stub: verify_service_pb2_grpc.VerifyServiceAsyncStub) -> None:
        self.call = stub.Attach()
        self.messages: list[verify_service_pb2.AttachResponse] = []
        self.received: dict[int, Received] = {}
        self._reader = asyncio.create_task(self._read())

    async def start(self, *starts: verify_service_pb2.Start) -> None:
        """Send requests in one message."""
        for start in starts:
            self.received[start.request_id] = Received()
        await self.call.write(verify_service_pb2.AttachRequest(starts=starts))

    async def send(self, message: verify_service_pb2.AttachRequest) -> None:
        """Send any message."""
        await self.call.write(message)

    async def result(self, request_id: int, timeout_seconds: float = 20.0) -> Received:
        """Return a request's results once it has ended."""
        async with asyncio.timeout(timeout_seconds):
            await self.received[request_id].ended.wait()
        return self.received[request_id]

    async def aclose(self) -> None:
        """Hang up."""
        self.call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self.call:
            self.messages.append(message)
            for result in message.results:
                self._take(result)
            for failure in message.failures:
                received = self.received.setdefault(failure.request_id, Received())
                received.failure = failure
                received.ended.set()

    def _take(self, result: verify_service_pb2.StepResult) -> None:
        received = self.received.setdefault(result.request_id, Received())
        received.results.append(result)
        received.token_ids.extend(result.token_ids)
        received.num_drafted += result.num_drafted
        received.num_accepted += result.num_accepted
        if result.finish_reason:
            received.finish_reason = result.finish_reason
            received.ended.set()


@asynccontextmanager
async def attached(address: str) -> AsyncIterator[AttachedGateway]:
    """Attach to a verifier as a gateway does."""
    async with open_link(address) as channel:
        gateway = AttachedGateway(verify_service_pb2_grpc.VerifyServiceStub(channel))
        try:
            yield gateway
        finally:
            await gateway.aclose()


async def served(address: str, *starts: verify_service_pb2.Start) -> list[Received]:
    """Send requests in one message and return what came back for each."""
    async with attached(address) as gateway:
        await gateway.start(*starts)
        return [await gateway.result(each.request_id) for each in starts]


def start(
    request_id: int, prompt: list[int], *, max_tokens: int = 32, pool: str = "", **fields: object
) -> verify_service_pb2.Start:
    """Return a greedy ``Start`` unless ``fields`` say otherwise."""
    message = verify_service_pb2.Start(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=types_pb2.SamplingParams(temperature=0.0),
        limits=types_pb2.TokenLimits(max_tokens=max_tokens, ignore_eos=True),
        drafting=types_pb2.DraftingPolicy(pool=pool),
    )
    message.MergeFrom(verify_service_pb2.Start(**fields))  # type: ignore[arg-type]  # field names
    return message


async def eventually(condition: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
    """Return once ``condition()`` holds; raises ``TimeoutError`` if it never does."""
    async with asyncio.timeout(timeout_seconds):
        while not condition():  # noqa: ASYNC110 - the state lives in another thread or process
            await asyncio.sleep(0.01)
