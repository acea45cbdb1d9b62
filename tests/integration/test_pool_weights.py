"""Two draft pools behind one gateway: weight moves from one to the other while streams run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import paceline
from tests.doubles.model_folders import write_model_folder
from tests.doubles.process_line import LineProcess, drafter, gateway, running, verifier

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

NUM_STREAMS = 8
NUM_TOKENS = 400


def write_routing(path: Path, pools: dict[str, tuple[LineProcess, int]]) -> None:
    """Replace the routing file at once, as a cluster does."""
    entries = {
        name: {"address": pool.address, "weight": weight} for name, (pool, weight) in pools.items()
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"pools": entries}))
    fresh.replace(path)


async def finished(
    client: paceline.AsyncClient, prompt: str, started: asyncio.Event
) -> tuple[list[int], str]:
    """Return the ids and the last pool of a drafting stream; ``started``: at the first text."""
    token_ids: list[int] = []
    summary = paceline.Summary()
    events = client.stream(
        prompt, max_tokens=NUM_TOKENS, ignore_eos=True, drafting="on", return_token_ids=True
    )
    async for event in events:
        if isinstance(event, paceline.Delta):
            token_ids.extend(event.token_ids)
            started.set()
        elif isinstance(event, paceline.Summary):
            summary = event
    return token_ids, summary.speculation.pool


def sessions(metrics: str) -> float:
    """Return how many trees a draft service has computed."""
    lines = [line for line in metrics.splitlines() if line.startswith("paceline_draft_proposals_")]
    return sum(float(line.split()[-1]) for line in lines if "_total{" in line)


async def test_weight_moves_from_blue_to_green_under_eight_streams(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model", context_length=1024)
    routing = tmp_path / "routing.yaml"
    blue, green = drafter(tmp_path, "blue"), drafter(tmp_path, "green")
    write_routing(routing, {"blue": (blue, 100), "green": (green, 0)})
    engine = verifier(tmp_path, "verifier", model, f"--routing={routing}")
    door = gateway(
        tmp_path, "gateway", model, f"--routing={routing}", f"--verifiers={engine.address}"
    )
    prompts = [f"prompt number {number}" for number in range(NUM_STREAMS)]

    async with running(blue, green, engine, door), paceline.AsyncClient(door.address) as client:
        plain = [
            (await client.generate(p, max_tokens=NUM_TOKENS, ignore_eos=True, drafting="off"))
            for p in prompts
        ]
        started = [asyncio.Event() for _ in prompts]
        streams = [
            asyncio.create_task(finished(client, prompt, event))
            for prompt, event in zip(prompts, started, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in started))
        before = sessions(await green.metrics())
        write_routing(routing, {"blue": (blue, 0), "green": (green, 100)})
        results = await asyncio.gather(*streams)
        after = sessions(await green.metrics())
        _, pool_of_the_next = await finished(client, "one more", asyncio.Event())

    assert [list(token_ids) for token_ids, _ in results] == [
        list(answer.outputs[0].token_ids) for answer in plain
    ]
    assert before == 0 < after
    assert {pool for _, pool in results} == {"green"}
    assert pool_of_the_next == "green"


async def test_a_pool_can_be_added_and_removed_while_serving(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model")
    routing = tmp_path / "routing.yaml"
    first, second = drafter(tmp_path, "first"), drafter(tmp_path, "second")
    write_routing(routing, {"first": (first, 1)})
    engine = verifier(tmp_path, "verifier", model, f"--routing={routing}")
    door = gateway(
        tmp_path, "gateway", model, f"--routing={routing}", f"--verifiers={engine.address}"
    )

    async with running(first, second, engine, door), paceline.AsyncClient(door.address) as client:
        write_routing(routing, {"second": (second, 1)})
        async with asyncio.timeout(20):
            while (await pools_of(client)) != {"second"}:  # noqa: ASYNC110 another process
                await asyncio.sleep(0.1)
        _, pool = await finished(client, "hello", asyncio.Event())

    assert pool == "second"


async def pools_of(client: paceline.AsyncClient) -> set[str]:
    """Return the pools that can be used."""
    (model,) = await client.models()
    return {pool.name for pool in model.draft_pools if pool.available}
