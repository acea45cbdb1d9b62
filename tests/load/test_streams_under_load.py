"""Opt-in (``-m load``): a whole line on a simulated target in real time, under mixed traffic."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.simulated_drafter import SimulatedDrafter, TreeShape
from bench.virtual_line import workload_of
from paceline.codec import tree_to_proto
from paceline.v1 import draft_service_pb2, types_pb2
from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import RunningGateway, running_gateway
from tests.doubles.running_verifier import POOL, running_drafter, running_verifier
from tests.doubles.scripted_drafter import Proposals, ScriptedDrafter
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets.roofline import GPUS, MODELS, Roofline
from verify_service.targets.simulated import RealClock, SimulatedTarget
from verify_service.warm_up import warm_up

pytestmark = [pytest.mark.load, pytest.mark.asyncio, pytest.mark.timeout(300)]

VOCAB_SIZE = 400
PRIORITIES = (
    types_pb2.PRIORITY_CLASS_BATCH,
    types_pb2.PRIORITY_CLASS_STANDARD,
    types_pb2.PRIORITY_CLASS_INTERACTIVE,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a small tokenizer."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def simulated_line(folder: Path) -> AsyncIterator[tuple[RunningGateway, StepEngine]]:
    """Run drafter, verifier and gateway in this process."""
    roofline = Roofline(MODELS["llama-3.1-8b"], GPUS["h100"], 1)
    target = SimulatedTarget(roofline, RealClock(), vocab_size=VOCAB_SIZE)
    config = EngineConfig(
        num_blocks=8192,
        max_running=128,
        max_prefill_rows=2048,
        max_draft_tokens=16,
        draft_pools=(POOL,),
    )
    engine = StepEngine(target, config)
    warm_up(engine)
    drafter = SimulatedDrafter(target.stream, shape=TreeShape(max_nodes=16, max_depth=10))

    def propose(session_id: int, committed: list[int]) -> Proposals:
        tree = drafter.propose(workload_of(session_id), session_id, committed)
        yield draft_service_pb2.Proposal(
            session_id=session_id, base_len=len(committed), tree=tree_to_proto(tree)
        )

    async with (
        running_drafter(ScriptedDrafter(propose)) as pool,
        running_verifier(engine, {POOL: pool}) as (_, address),
        running_gateway(folder, address) as gateway,
    ):
        yield gateway, engine


def mixed_requests(seed: int) -> Iterator[messages.GenerateRequest]:
    """Yield requests of mixed lengths, priorities and sampling, without end."""
    rng = random.Random(seed)  # noqa: S311
    while True:
        prompt = [rng.randrange(3, 300) for _ in range(rng.randrange(8, 128))]
        yield messages.GenerateRequest(
            token_ids=messages.TokenIds(ids=prompt),
            stopping=messages.StoppingOptions(max_tokens=rng.randrange(16, 96), ignore_eos=True),
            sampling=types_pb2.SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=seed),
            priority=rng.choice(PRIORITIES),
        )


async def answered(gateway: RunningGateway, request: messages.GenerateRequest) -> int:
    """Return how many tokens came; all that were asked for, or it fails."""
    response = await gateway.stub.Generate(request, timeout=120)
    assert response.usage.completion_tokens == request.stopping.max_tokens
    return int(response.usage.completion_tokens)


async def closed_loop(gateway: RunningGateway, num_streams: int, per_stream: int) -> list[int]:
    """Keep a number of streams busy."""

    async def stream(seed: int) -> list[int]:
        requests = mixed_requests(seed)
        return [await answered(gateway, next(requests)) for _ in range(per_stream)]

    results = await asyncio.gather(*(stream(seed) for seed in range(num_streams)))
    return [count for counts in results for count in counts]


async def open_loop(gateway: RunningGateway, rate: float, num_requests: int) -> list[int]:
    """Send requests at random moments (Poisson), whatever has become of those before."""
    rng, requests = random.Random(7), mixed_requests(7)  # noqa: S311
    tasks: list[asyncio.Task[int]] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(num_requests):
            call: Coroutine[None, None, int] = answered(gateway, next(requests))
            tasks.append(group.create_task(call))
            await asyncio.sleep(rng.expovariate(rate))
    return [task.result() for task in tasks]


@pytest.mark.parametrize("num_streams", [2, 32])
async def test_closed_loop_answers_everyone_in_full(folder: Path, num_streams: int) -> None:
    async with simulated_line(folder) as (gateway, engine):
        counts = await closed_loop(gateway, num_streams, per_stream=3)

    assert len(counts) == 3 * num_streams
    assert engine.num_sequences == 0
    assert engine.blocks.num_in_use == 0


async def test_open_loop_with_poisson_arrivals_answers_everyone_in_full(folder: Path) -> None:
    async with simulated_line(folder) as (gateway, engine):
        counts = await open_loop(gateway, rate=20.0, num_requests=80)

    assert len(counts) == 80
    assert engine.num_sequences == 0
