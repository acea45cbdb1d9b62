"""Each service is restarted in turn under 16 streams through a real Envoy: no request fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.doubles.envoy import ENVOY, running_envoy
from tests.doubles.model_folders import write_model_folder
from tests.doubles.process_line import LineProcess, drafter, gateway, running, verifier

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not ENVOY.exists(), reason="make test-helm installs Envoy"),
]

NUM_STREAMS = 16
NUM_TOKENS = 150
DRAIN = ("--propagation-delay-seconds=2.5", "--drain-seconds=60")


@dataclass
class Traffic:
    """Sixteen clients that ask again as soon as they have an answer; none of them retries."""

    address: str
    token_ids: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_answers: int = 0
    is_over: bool = False

    async def client(self, number: int) -> None:
        """Ask the same question over and over."""
        options = (("grpc.enable_retries", 0),)
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            stub = GenerationServiceStub(channel)
            while not self.is_over:
                await self._ask(stub, number)

    async def _ask(self, stub: GenerationServiceStub, number: int) -> None:
        request = messages.GenerateRequest(
            text=f"question {number}",
            stopping=messages.StoppingOptions(max_tokens=NUM_TOKENS, ignore_eos=True),
            output=messages.OutputOptions(return_token_ids=True),
        )
        token_ids: list[int] = []
        try:
            call = stub.StreamGenerate(messages.StreamGenerateRequest(request=request), timeout=120)
            async for event in call:  # type: ignore[attr-defined]  # the stub is an aio one
                token_ids.extend(event.delta.token_ids)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{error.code().name}: {error.details()}")
        else:
            self.token_ids.setdefault(number, set()).add(tuple(token_ids))
            self.num_answers += 1


async def test_every_service_restarts_in_turn_without_a_failed_request(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model")
    drafts = [drafter(tmp_path, "ngram")]
    pool = f"--pools=ngram={drafts[0].address}"
    engines = [verifier(tmp_path, f"verifier{i}", model, pool, *DRAIN) for i in range(2)]
    known = [f"--verifiers={engine.address}" for engine in engines]
    doors = [gateway(tmp_path, f"gateway{i}", model, *known, *DRAIN) for i in range(2)]
    exit_codes: dict[str, int] = {}

    async with (
        running(*drafts, *engines, *doors),
        running_envoy(tmp_path, [door.address for door in doors]) as address,
    ):
        traffic = Traffic(address)
        clients = [asyncio.create_task(traffic.client(i)) for i in range(NUM_STREAMS)]
        for service in (*drafts, *engines, *doors):
            await answered(traffic, NUM_STREAMS)
            exit_codes[service.log.stem] = await service.restart()
            await recovered(service, doors)
        await answered(traffic, NUM_STREAMS)
        traffic.is_over = True
        await asyncio.gather(*clients)

    assert traffic.failures == []
    assert exit_codes == dict.fromkeys(exit_codes, 0)
    assert set(traffic.token_ids) == set(range(NUM_STREAMS))
    assert all(len(answers) == 1 for answers in traffic.token_ids.values())


async def answered(traffic: Traffic, number: int) -> None:
    """Wait until the clients have got some more answers."""
    goal = traffic.num_answers + number
    while traffic.num_answers < goal and not traffic.failures:  # noqa: ASYNC110 a bound follows
        await asyncio.sleep(0.1)


async def recovered(service: LineProcess, doors: list[LineProcess]) -> None:
    """Wait until the gateways use a verifier again: one goes only when the other is back."""
    if service.module != "verify_service":
        return
    wanted = f'paceline_verifier_up{{verifier="{service.address}"}} 1.0'
    async with asyncio.timeout(30):
        for door in doors:
            while wanted not in await door.metrics():  # noqa: ASYNC110 another process
                await asyncio.sleep(0.1)
