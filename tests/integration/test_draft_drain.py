"""A draft service that stops hands its verifiers over, and nobody runs without drafts for it."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from draft_service.registry import create_drafter
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from paceline.v1 import draft_service_pb2_grpc, types_pb2
from tests.doubles.running_verifier import (
    POOL,
    Received,
    attached,
    eventually,
    make_engine,
    running_verifier,
    start,
)
from tests.doubles.scripted_drafter import ScriptedDrafter

pytestmark = pytest.mark.asyncio

DRAIN_SECONDS = 20.0


def fallbacks(received: Received) -> set[int]:
    return {result.fallback for result in received.results}


async def test_sessions_move_to_another_replica_while_the_old_one_drains() -> None:
    settings = DraftSettings(listen="127.0.0.1:0")
    loop = asyncio.get_running_loop()
    async with (
        running_server(settings, create_drafter(settings)) as old,
        running_server(settings, create_drafter(settings)) as new,
        # As a headless service's name would resolve: the first that can be reached is taken.
        running_verifier(
            make_engine(pace_seconds=0.005), {POOL: f"ipv4:{old.address},{new.address}"}
        ) as (server, address),
        attached(address) as gateway,
    ):
        link = server.links[POOL]
        await eventually(lambda: link.status.cause is None)
        await gateway.start(start(1, [1, 2, 3], max_tokens=300, pool=POOL))
        await eventually(lambda: link.counts["trees"] > 0)

        began = loop.time()
        await old.drain(propagation_delay_seconds=0.0, drain_seconds=DRAIN_SECONDS)
        drained = loop.time() - began
        num_trees = link.counts["trees"]
        await gateway.start(start(2, [4, 5], max_tokens=20, pool=POOL))
        received = [await gateway.result(number) for number in (1, 2)]

    assert drained < DRAIN_SECONDS / 2
    assert [len(each.token_ids) for each in received] == [300, 20]
    assert link.counts["trees"] > num_trees
    assert set.union(*map(fallbacks, received)) == {types_pb2.DRAFT_FALLBACK_UNSPECIFIED}


async def test_a_draining_drafter_without_successor_keeps_its_sessions_and_gets_no_new_ones() -> (
    None
):
    drafter = ScriptedDrafter()
    backend = grpc.aio.server()
    draft_service_pb2_grpc.add_DraftServiceServicer_to_server(drafter, backend)
    port = backend.add_insecure_port("127.0.0.1:0")
    await backend.start()
    async with (
        running_verifier(make_engine(pace_seconds=0.005), {POOL: f"127.0.0.1:{port}"}) as (
            server,
            address,
        ),
        attached(address) as gateway,
    ):
        await eventually(lambda: server.links[POOL].status.cause is None)
        await gateway.start(start(1, [1, 2, 3], max_tokens=200, pool=POOL))
        await eventually(lambda: len(drafter.sessions) == 1)

        stopping = asyncio.create_task(backend.stop(DRAIN_SECONDS))
        drafter.draining = True
        await eventually(lambda: any(response.draining for response in drafter.responses))
        await gateway.start(start(2, [4, 5], max_tokens=10, pool=POOL))
        second = await gateway.result(2)
        num_commits = sum(len(request.commits) for request in drafter.requests)
        first = await gateway.result(1)

    await stopping
    assert (len(first.token_ids), len(second.token_ids)) == (200, 10)
    assert sum(len(request.opens) for request in drafter.requests) == 1
    assert sum(len(request.commits) for request in drafter.requests) > num_commits
    assert drafter.num_streams == 1
